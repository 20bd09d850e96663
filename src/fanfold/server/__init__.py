"""The HTTP API, its event streams, the console's files and MCP."""
