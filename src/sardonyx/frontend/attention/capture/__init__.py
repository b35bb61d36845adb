"""Captures a model as a graph with decomposed attention: by symbolic tracing, or by torch.export."""
