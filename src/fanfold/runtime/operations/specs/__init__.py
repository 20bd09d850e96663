"""From a task in words to a recipe: is it one for a workflow, and which."""
