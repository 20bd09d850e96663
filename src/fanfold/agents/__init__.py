"""Agents: roles, permissions, tools, back ends and model providers."""
