"""What people ask about runs: which there are, what happened, and why."""
