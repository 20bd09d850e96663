"""Ranked search over the outputs of steps: questions, documents, the index, excerpts."""
