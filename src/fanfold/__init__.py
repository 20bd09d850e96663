"""Fan a job out to a team of AI agents and fold one answer back."""

__version__ = "0.1.0"
