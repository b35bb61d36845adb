"""The PyTorch side: loading a model, its example inputs, both exporters, and attention on torch.fx graphs."""
