"""Emission: what agents were delegated, read back as the recipe that would do it again."""
