"""Programs that steps and agents run, in the sandbox, and the tools made of them."""
