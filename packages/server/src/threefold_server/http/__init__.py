"""The HTTP edge: routes, identity, limits and errors."""
