"""What several norms passes, and only they, are made of."""
