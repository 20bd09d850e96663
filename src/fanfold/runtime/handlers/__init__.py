"""Python callables that `function` steps name: how they are registered, found, loaded and called."""
