"""Rows of the SQLite store: one module a table or two."""
