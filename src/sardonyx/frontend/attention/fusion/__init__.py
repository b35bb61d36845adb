"""Attention rewritten into one call: what may be, what is, and what is said of the rest."""
