"""Before a run begins: what it may do and take, whether it can, and recording it."""
