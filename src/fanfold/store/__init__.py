"""Stores: logs, blobs, leases, requests, and the search index derived from them."""
