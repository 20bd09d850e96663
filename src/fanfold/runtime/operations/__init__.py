"""Everything a person or a program can do with a project and its runs."""
