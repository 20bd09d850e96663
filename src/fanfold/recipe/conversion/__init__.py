"""Recipes from other systems' workflows: read, never executed; what cannot be carried over is listed."""
