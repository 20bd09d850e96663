"""What remembers: logs, blobs, heads of runs, leases, requests and the search index derived from them."""
