"""The embedded host: everything between a checked plan and the world."""
