"""What the shop must do."""
