"""Every operation of a user or program, one module per noun. Surfaces only present the results."""
