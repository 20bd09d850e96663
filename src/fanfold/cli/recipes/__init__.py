"""Commands about recipes: list, show, check, and the set-up of editors."""
