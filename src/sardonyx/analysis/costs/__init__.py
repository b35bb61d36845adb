"""What a model costs: operations, bytes, fused regions and memory, from a Program that torch and ONNX both become."""
