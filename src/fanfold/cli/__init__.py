"""The command line. It presents operations of `api` and decides nothing itself."""
