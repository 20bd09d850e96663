"""Commands that start runs, go on with them and steer them."""
