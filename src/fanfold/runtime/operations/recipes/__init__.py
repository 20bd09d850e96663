"""Recipes as people name them: found, checked, listed, repaired."""
