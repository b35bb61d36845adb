"""What several attention passes, and only they, are made of."""
