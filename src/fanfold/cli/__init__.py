"""The command line: presents what wiring, recipe and runtime can do; decides nothing itself."""
