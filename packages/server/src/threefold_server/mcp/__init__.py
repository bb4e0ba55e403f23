"""Memory for MCP clients: the server behind both transports, and the transport over standard input and output."""
