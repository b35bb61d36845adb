"""What several masks passes, and only they, are made of."""
