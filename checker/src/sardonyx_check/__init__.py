"""Check that two ONNX models compute the same, rewrite by rewrite, in exact arithmetic."""
