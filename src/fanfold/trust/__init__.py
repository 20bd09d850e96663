"""What came from elsewhere: whose state a project holds, and its files read without being led out of it."""
