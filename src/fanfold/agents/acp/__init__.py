"""Agents that speak the Agent Client Protocol: a connection for each call, over its pipes."""
