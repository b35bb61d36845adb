"""Example inputs of a module, given or derived, and its dynamic dimensions."""
