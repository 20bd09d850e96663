"""A very small shop with two mistakes in it."""
