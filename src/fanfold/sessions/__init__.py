"""Sessions: conversations of agents, their logs, processes and supervisor."""
