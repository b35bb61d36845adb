"""A folder that onnxruntime-genai loads: a decoder, `genai_config.json`, and the files of its tokenizer."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import msgspec
import onnx_ir as ir
from msgspec import Struct

from sardonyx.common.atomic_write import draft_folder
from sardonyx.errors import ModelError
from sardonyx.ir.io.data_files import external_files
from sardonyx.ir.io.files import Saved, load, save

CONFIG = "genai_config.json"
_WRITTEN_BY = "`sardonyx export` with `for_generation=True` writes one"


class _Decoder(Struct, frozen=True):
    filename: str
    inputs: dict[str, str]


class _Model(Struct, frozen=True):
    decoder: _Decoder
    vocab_size: int
    context_length: int


class _Config(Struct, frozen=True):
    """The fields of `genai_config.json` that are read here."""

    model: _Model


class DecoderFolder(Struct, frozen=True):
    """A folder with a decoder."""

    folder: Path
    _model: _Model

    @classmethod
    def of(cls, source: object) -> DecoderFolder | None:
        """Return the folder, or None if the source is not one with a `genai_config.json`.

        Raises:
            ModelError: The file does not describe a decoder.
        """
        path = Path(source) / CONFIG if isinstance(source, (str, Path)) else None
        if path is None or not path.is_file():
            return None
        try:
            return cls(path.parent, msgspec.json.decode(path.read_bytes(), type=_Config).model)
        except msgspec.DecodeError as error:
            raise ModelError(f"{path} does not describe a decoder: {error}", hint=_WRITTEN_BY) from error

    @classmethod
    def require(cls, source: Path) -> DecoderFolder:
        """Return the folder.

        Raises:
            ModelError: It has no `genai_config.json`, or one that does not describe a decoder.
        """
        folder = cls.of(source)
        if folder is None:
            raise ModelError(f"{source} is not a folder with a {CONFIG}", hint=_WRITTEN_BY)
        return folder

    @property
    def model(self) -> Path:
        """The file of the decoder."""
        return self.folder / self._model.decoder.filename

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return self._model.vocab_size

    @property
    def context(self) -> int:
        """The largest number of positions."""
        return self._model.context_length

    def cache_bytes(self, model: ir.Model) -> int:
        """Return the bytes of all keys and values of one position of one sequence."""
        names = self._model.decoder.inputs
        prefixes = tuple(name.partition("%d")[0] for key, name in names.items() if key.startswith("past_"))
        return sum(_fixed_bytes(value) for value in model.graph.inputs if (value.name or "").startswith(prefixes))

    @contextlib.contextmanager
    def replaced(self, output: str | os.PathLike[str], *, force: bool) -> Generator[Path]:
        """Yield the path to write another decoder to; it appears in `output` together with copies of all other files.

        The path is in a draft of the folder, which is renamed when the block ends without an error.
        """
        own = {self.model.name, *external_files(self.model)}
        with draft_folder(os.fspath(output), force=force) as draft:
            for path in self.folder.iterdir():
                if path.is_file() and path.name not in own:
                    shutil.copyfile(path, Path(draft) / path.name)
            yield Path(draft) / self.model.name


def move_into(path: Path, folder: Path, *, hashed: bool) -> tuple[ir.Model, Saved] | None:
    """Save the model of a draft over that of a folder that has files, so that each model keeps data that fits it.

    Return None if the folder is empty or missing: the draft becomes the folder.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    model, drafts = load(path), (path.name, *external_files(path))
    saved = save(model, folder / path.name, force=True, hashed=hashed)
    for name in drafts:
        (path.parent / name).unlink()
    return model, saved


def _fixed_bytes(value: ir.Value) -> int:
    sizes = [size for size in value.shape or () if isinstance(size, int)]
    return int(math.prod(sizes) * (value.dtype or ir.DataType.FLOAT).itemsize)
