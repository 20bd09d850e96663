"""New runs made of old ones: forks and retries, and what a change reaches."""
