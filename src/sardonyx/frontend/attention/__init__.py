"""Attention on the torch.fx side: spelled out in primitives, recognised where written by hand, and fused again."""
