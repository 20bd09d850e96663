"""Back ends: the implementations behind `agents.backend.Backend`. Only wiring names one."""
