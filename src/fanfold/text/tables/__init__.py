"""Tables of keys, and reading the objects of a language by them."""
