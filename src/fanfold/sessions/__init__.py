"""Sessions: conversations of agents, their logs and processes, and the one authority over their lives."""
