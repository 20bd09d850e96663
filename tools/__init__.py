"""Scripts for developers of Fanfold; nothing here ships with the package."""
