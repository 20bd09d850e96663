"""From text to plan: recipes are read, checked and compiled here; reading one executes nothing."""
