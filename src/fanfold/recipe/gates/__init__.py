"""The kinds of gates that decide whether a phase is done, one module each."""
