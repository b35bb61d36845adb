"""Where a model spends its time: the runtime's profile, brought back to nodes and to modules of the source model."""
