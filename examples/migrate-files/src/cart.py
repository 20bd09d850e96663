"""A file of the shop: cart."""

old_api()
