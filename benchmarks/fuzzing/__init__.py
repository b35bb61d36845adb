"""Random models that attack the optimizer: how they are drawn, checked and reduced."""
