"""What several runtime passes, and only they, are made of."""
