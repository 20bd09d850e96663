"""Who does the work: roles, and the models that can be used here."""
