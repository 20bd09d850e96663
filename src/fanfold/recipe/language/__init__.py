"""The recipe language as data: every key, what its value looks like, and how a mapping of them is read."""
