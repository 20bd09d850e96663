"""Fanfold as an MCP server: tools, recipes as prompts, runs as resources. It presents and decides nothing."""
