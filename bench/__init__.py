"""Benchmarks: everything in one run on one machine, ratios rather than absolute times."""
