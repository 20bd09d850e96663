"""Texts that know where they stand: YAML trees, templates, diagnostics. For recipes, scripts, roles."""
