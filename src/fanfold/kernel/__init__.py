"""The pure kernel: a run is a fold over its log, and a decision is a function of the fold."""
