"""Keep what pays on this machine: rewrites that a measurement shows to cost time are undone, within a budget."""
