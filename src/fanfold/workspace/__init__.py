"""Workspaces: what a step may see and change, and how its changes come home (see `workspaces`, `sandbox`)."""
