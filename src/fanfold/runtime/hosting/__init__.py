"""The embedded host: load, decide, append, act."""
