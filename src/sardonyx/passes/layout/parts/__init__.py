"""What several layout passes, and only they, are made of."""
