"""Tools for testing runs: a simulated world driven by a seed."""
