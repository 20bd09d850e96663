"""What runs changed in files: shown, applied, taken back."""
