"""The embedded local model: weights from the package registry, llama.cpp's server on loopback, no key."""
