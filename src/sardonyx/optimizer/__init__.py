"""`sardonyx.optimize`: passes in order, verified, rolled back where a verification fails, and tuned."""
