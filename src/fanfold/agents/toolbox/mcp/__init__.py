"""The tools of MCP servers that a role names: reached, bounded, made fit for a model."""
