"""Compare the operations of an exported program with the ONNX nodes they became, in exact arithmetic."""
