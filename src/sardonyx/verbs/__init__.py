"""Commands: a module or package for each, found by its name."""
