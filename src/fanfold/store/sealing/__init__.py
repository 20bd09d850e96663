"""Hashes by which a change of what is stored is found: of each row, and of the log as a chain."""
