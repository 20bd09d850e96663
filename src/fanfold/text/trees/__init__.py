"""Trees that remember where every value stands, whether YAML, TOML or front matter was read."""
