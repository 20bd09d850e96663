"""A run as one file: written so that anybody can read it, read so that nothing in it is trusted."""
