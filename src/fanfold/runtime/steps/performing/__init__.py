"""Carrying jobs out: in the right place, with the output checked and conflicts settled."""
