"""Who owns a run tree, what others ask of it, and how it hears of it."""
