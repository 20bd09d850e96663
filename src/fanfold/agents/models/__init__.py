"""API models: connections, requests, conversations and sessions."""
