"""Commands about this installation and this project."""
