"""Record the `Program` of a torch model by running it, on fake tensors or on data."""
