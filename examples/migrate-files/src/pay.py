"""A file of the shop: pay."""

old_api()
