"""Agents at work as surfaces show them: what they were told, said and did, and whom they asked."""
