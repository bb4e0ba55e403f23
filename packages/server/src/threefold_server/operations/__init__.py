"""The public verbs of the service, one module each: recall, write, facts, forget and the others.

An operation takes (service, principal, request), asks `rules` what the caller may do, and reads or writes through
`storage`. It knows neither HTTP nor MCP.
"""
