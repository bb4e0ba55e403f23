"""The HTTP edge: routes, identity, errors."""
