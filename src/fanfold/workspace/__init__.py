"""Workspaces: snapshots, sandbox, changes, merges and delivery."""
