"""How steps are prepared and carried out."""
