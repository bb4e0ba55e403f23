"""Memory for MCP clients, over standard input and output or over HTTP."""
