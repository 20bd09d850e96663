"""A file of the shop: other."""
