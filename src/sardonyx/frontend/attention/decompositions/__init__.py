"""Attention written out, step by step: what torch's own attentions compute, in primitives that know their roles."""
