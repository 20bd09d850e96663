"""`fanfold chat`: a conversation at the terminal. It speaks and asks; the chat itself is an operation."""
