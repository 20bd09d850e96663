"""Agents that are programs: profiles, calls, transcripts and ACP."""
