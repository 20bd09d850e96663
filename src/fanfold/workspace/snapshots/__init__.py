"""Snapshots: base trees, the children that are layers over them, and what a child changed."""
