"""Samples of data: read one at a time, checked against the inputs of the model, and divided into three parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast, overload

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from sardonyx.common.temporary import TemporaryFolder, temporary_folder
from sardonyx.errors import UsageError
from sardonyx.frontend.sources import load_function, user_error
from sardonyx.records.input_specs import check_names, read_arrays
from sardonyx.records.quantization import DataParts
from sardonyx.runtime import Value

Sample: TypeAlias = "Mapping[str, Value]"
Data: TypeAlias = "str | os.PathLike[str] | Sample | Sequence[str | os.PathLike[str] | Sample] | Iterable[Sample]"
MAX_SAMPLES = 1024  # samples that are used
MIN_DIVIDED_SAMPLES = 3  # below which every part is all of them
_FEWEST_PAIRS = 6  # from which every part has two samples, and so a margin
MIN_JUDGED_SAMPLES = 20  # judged samples below which the interval of the loss is not reliable
_MAX_CHOICE_SAMPLES, _MAX_CALIBRATION_SAMPLES = 32, 128  # samples at most
_FORMS = "an .npz file, a folder of them, or FILE.py:FUNCTION that yields arrays by name"


class Samples:
    """Samples by number. Those of a function or an iterator go to a temporary folder, so that memory holds one."""

    def __init__(self, data: Data) -> None:
        self._folder: TemporaryFolder | None = None
        self._items: list[Path | Sample] = []
        if isinstance(data, (str, os.PathLike)):
            self._add(data)
        elif isinstance(data, Mapping):
            self._items.append(cast("Sample", data))
        elif isinstance(data, Sequence):
            for item in data[:MAX_SAMPLES]:
                self._add(item)
        else:
            self._store(data)
        if not self._items:
            raise UsageError("the data has no samples", hint=f"give {_FORMS}")

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._items)

    def __getitem__(self, number: int) -> Sample:
        """Read a sample."""
        item = self._items[number]
        return read_arrays(item) if isinstance(item, Path) else item

    def label(self, number: int) -> str:
        """Return a sample's name in messages."""
        item = self._items[number]
        return item.name if isinstance(item, Path) and self._folder is None else f"sample {number + 1}"

    def _add(self, item: str | os.PathLike[str] | Sample) -> None:
        if isinstance(item, Mapping):
            self._items.append(item)
            return
        text = os.fspath(item)
        path, function = _function(text)
        if function:
            self._store(_yielded(path, function))
        elif (folder := Path(text)).is_dir():
            found = sorted(folder.glob("*.npz"))
            if not found:
                raise UsageError(f"{text} has no .npz files", hint="write each sample with numpy.savez")
            self._items += found
        else:
            self._items.append(Path(text))
            read_arrays(Path(text))

    def _store(self, samples: Iterable[Sample]) -> None:
        self._folder = self._folder or temporary_folder()
        for sample in samples:
            path = Path(self._folder.name) / f"{len(self._items):06d}.npz"
            np.savez(path, **{name: np.asarray(value) for name, value in sample.items()})  # pyright: ignore[reportArgumentType]
            self._items.append(path)
            if len(self._items) >= MAX_SAMPLES:
                break


class Feeds(Sequence[dict[str, Value]]):
    """The inputs of some samples, each read when it is asked for."""

    def __init__(self, samples: Samples, numbers: Sequence[int], inputs: Sequence[ir.Value], *, extra: bool) -> None:
        self._samples, self._numbers, self._inputs, self._extra = samples, numbers, inputs, extra

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> dict[str, Value]: ...
    @overload
    def __getitem__(self, place: slice) -> Feeds: ...
    def __getitem__(self, place: int | slice) -> dict[str, Value] | Feeds:
        """Read the inputs of a sample.

        Raises:
            UsageError: They do not fit the inputs of the model.
        """
        if isinstance(place, slice):
            return Feeds(self._samples, self._numbers[place], self._inputs, extra=self._extra)
        number = self._numbers[place]
        sample = self._samples[number]
        check_fit(self._samples.label(number), sample, self._inputs, extra=self._extra)
        return {value.name or "": sample[value.name or ""] for value in self._inputs}


def _function(text: str) -> tuple[Path, str]:
    """Return the file and the function of FILE.py:FUNCTION, or an empty name."""
    file, colon, name = text.rpartition(":")
    return (Path(file), name) if colon and file.endswith(".py") else (Path(text), "")


def user_function(text: str, what: str) -> tuple[Path, Callable[..., object]]:
    """Return the function that FILE.py:FUNCTION names.

    Raises:
        UsageError: The text has another form, the file does not exist or cannot be imported, or lacks the function.
    """
    path, name = _function(text)
    if not name:
        raise UsageError(f"{what} {text!r} is not FILE.py:FUNCTION", hint="name a function of a Python file")
    if not path.is_file():
        raise UsageError(f"{what}: there is no file {path}", hint="check the path")
    return path, load_function(path, name)


def _yielded(path: Path, name: str) -> Iterable[Sample]:
    function = user_function(f"{path}:{name}", "the data")[1]
    try:
        for sample in cast("Iterable[object]", function()):
            if not isinstance(sample, Mapping):
                kind = type(sample).__name__
                raise UsageError(f"{path}:{name} yielded {kind}, not arrays by name", hint="yield a dict for each run")
            yield cast("Sample", sample)
    except UsageError:
        raise
    except Exception as error:  # the user's code may raise anything; it is reported
        raise user_error(path, f"{name}() failed", error) from error


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that have no default."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def check_fit(label: str, sample: Sample, inputs: Sequence[ir.Value], *, extra: bool) -> None:
    """Check the arrays of a sample against the inputs of the model; `extra` allows arrays that are not inputs.

    Raises:
        UsageError: An input is missing, unknown, or of another type or shape.
    """
    names = [value.name or "" for value in inputs]
    for name in names:
        if name not in sample:
            raise UsageError(f"the data lack '{name}' ({label})", hint=f"needed: {', '.join(names)}")
    if not extra:
        check_names(sample, names)
    for value in inputs:
        array, name = sample[value.name or ""], value.name
        if not isinstance(array, np.ndarray) or value.dtype is None:
            continue
        expected = value.dtype.numpy()
        if array.dtype != expected and value.dtype is not ir.DataType.STRING:
            raise UsageError(f"'{name}' is {array.dtype} in the data ({label}) and {expected} in the model")
        declared = array.shape if value.shape is None else value.shape
        if len(declared) != array.ndim or any(
            isinstance(dim, int) and 0 <= dim != size for dim, size in zip(declared, array.shape, strict=True)
        ):
            expected = ", ".join(str(dim) for dim in declared)
            raise UsageError(f"'{name}' is {list(array.shape)} in the data ({label}) and [{expected}] in the model")


class Parts(Struct, frozen=True):
    """The numbers of the samples that each step uses."""

    calibrate: tuple[int, ...]
    choose: tuple[int, ...]
    judge: tuple[int, ...]

    @property
    def shared(self) -> bool:
        """Whether a sample is in two parts."""
        used = [*self.calibrate, *self.choose, *self.judge]
        return len(set(used)) < len(used)

    def record(self, kind: str) -> DataParts:
        """Return the numbers of the record."""
        count, weak = len(self.judge), None
        samples = f"{count} sample" if count == 1 else f"{count} samples"
        if kind != "data":
            weak = "measured on generated inputs, which say little about a trained model"
        elif self.shared:
            weak = f"judged on the {samples} that the choice was made with: give at least {MIN_DIVIDED_SAMPLES}"
        elif count < MIN_JUDGED_SAMPLES:
            weak = f"judged on {samples}; the interval needs about {MIN_JUDGED_SAMPLES}"
        return DataParts(kind, len(self.calibrate), len(self.choose), count, shared=self.shared, weak=weak)


def divide(count: int, seed: int, *, calibrate: bool, choose: bool) -> Parts:
    """Divide samples at random: a quarter to calibrate and a quarter to choose, if needed, and the rest to judge.

    Without a choice, half of them calibrate. With fewer than three samples, every step uses all of them.
    """
    numbers = tuple(int(number) for number in np.random.default_rng(seed).permutation(count))
    if not calibrate and not choose:
        return Parts((), (), numbers)
    if count < MIN_DIVIDED_SAMPLES:
        return Parts(numbers if calibrate else (), numbers if choose else (), numbers)
    quarter = max(2 if count >= _FEWEST_PAIRS else 1, count // 4)
    first = min(quarter if choose else count // 2, _MAX_CALIBRATION_SAMPLES) if calibrate else 0
    second = first + (min(quarter, _MAX_CHOICE_SAMPLES) if choose else 0)
    return Parts(numbers[:first], numbers[first:second], numbers[second:])
