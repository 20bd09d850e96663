"""The recipe language: from text to plan, with diagnostics."""
