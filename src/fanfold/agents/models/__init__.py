"""API models: providers, requests, conversations. What the `model` back end is made of."""
