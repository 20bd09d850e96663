"""Step types, and the executor that runs one execution of a step."""
