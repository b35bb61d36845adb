"""Which nodes of a model a device runs."""
