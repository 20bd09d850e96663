"""Drafts: the steps of a recipe between reading and planning."""
