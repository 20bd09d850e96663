"""Delivery: what a run merged, as a commit on a branch of its own in the user's repository, and pushed."""
