"""What Fanfold offers over wires: the API under /api with its event streams, the console's files, and MCP."""
