"""Agents: who does the work of a step. Roles, and later permissions, tools and back ends."""
