"""Runs as surfaces show them: in lists, whole, step by step, over time, as a report."""
