"""The pure kernel: the state of a run is a fold over its log, and a decision is a function of that state."""
