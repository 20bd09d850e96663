"""Sets of paths: globs as automata, and the index that tells which live claim overlaps a set."""
