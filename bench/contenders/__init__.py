"""What is measured against each other; each runs in a process, and a virtual environment, of its own."""
