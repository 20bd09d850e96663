"""Commands that look at runs: what happened, what happens now, and why."""
