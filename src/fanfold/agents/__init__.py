"""Agents: who does the work of a step. Roles, permissions, tools, back ends, and the providers of models."""
