"""The cost model: arithmetic, bytes moved, fusion regions and memory of a `Program`, for torch and ONNX models."""
