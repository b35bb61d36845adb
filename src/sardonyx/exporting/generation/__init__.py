"""Decoders that generate: their example inputs, verification token by token, and the folder that runtimes load."""
