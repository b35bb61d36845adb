"""The kinds and costs of torch and ONNX operators, by name."""
