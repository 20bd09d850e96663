"""Agents that are programs: what each is called with, how its words are read, how its end is judged."""
