"""Tools for testing: scripted agents, and runs in a simulated world that a seed drives."""

from fanfold.agents.script import Script

__all__ = ["Script"]
