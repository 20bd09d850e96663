"""Where work happens, and how what it changed comes home."""
