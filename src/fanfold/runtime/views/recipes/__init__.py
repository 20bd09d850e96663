"""Recipes, and what they are made of, as surfaces show them."""
