"""The public operations of the service, one module each: recall, write, facts, forget and the others.

An operation takes (service, principal, request), checks in `rules` what the caller may do, and reads or writes through
`storage`. It does not depend on HTTP or MCP.
"""
