"""Convert a model to a newer operator set without changing what it computes."""
