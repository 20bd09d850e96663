"""Tools that agents use: files, commands, web pages and MCP servers."""
