"""What is told across the other rooms: recipes with their runs, what needs a person, two runs."""
