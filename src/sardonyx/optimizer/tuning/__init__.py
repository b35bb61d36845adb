"""Tuning: undo rewrites that measurements on this machine show to be slower, within a time budget."""
