"""Check that two ONNX models compute the same, rewrite by rewrite, in exact arithmetic."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # products are narrow here: more threads would only wait
