"""Programs that run next to Fanfold and use only the standard library."""
