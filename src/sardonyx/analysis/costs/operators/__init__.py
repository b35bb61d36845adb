"""What the operators of torch and of ONNX are, and how much arithmetic each does; operators go by name here."""
