"""Recipes recovered from the delegations of an open run."""
