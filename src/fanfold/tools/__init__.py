"""What models may call to drive Fanfold: each tool once, with its words, its shapes and what it does."""
