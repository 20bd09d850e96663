"""What each route does: read what was asked, call one operation, give its document back."""
