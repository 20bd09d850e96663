"""What is checked about a recipe before it becomes a plan, one module a question."""
