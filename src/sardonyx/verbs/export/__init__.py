"""Verbs that write model files: `export`, `extract` and `adopt`."""
