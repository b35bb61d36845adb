"""What several folding passes, and only they, are made of."""
