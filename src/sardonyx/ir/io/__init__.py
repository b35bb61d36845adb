"""Reading and writing model files; the weights stay on disk."""

from __future__ import annotations

from sardonyx.ir.io.data_files import external_files
from sardonyx.ir.io.files import (
    Copies,
    LoadedFile,
    ModelFile,
    Saved,
    from_proto,
    load,
    save,
    to_proto,
)
from sardonyx.ir.io.unmodeled_fields import forget_unsorted, has_training_info
from sardonyx.ir.storage import sha256_in, sha256_of

__all__ = [
    "Copies",
    "LoadedFile",
    "ModelFile",
    "Saved",
    "external_files",
    "forget_unsorted",
    "from_proto",
    "has_training_info",
    "load",
    "save",
    "sha256_in",
    "sha256_of",
    "to_proto",
]
