"""Attention on torch.fx graphs: decomposed into primitive operations, recognized by structure, and fused."""
