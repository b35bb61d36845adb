"""How a model becomes a graph in which attention can be spelled out: symbolic tracing, or torch.export."""
