"""Commands about who does the work: roles, models, subagents."""
