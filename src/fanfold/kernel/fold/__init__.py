"""How one event changes a state: the rows behind `state.evolve`."""
