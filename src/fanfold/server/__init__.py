"""The HTTP surface: the API under /api, its event streams, and the console's files."""
