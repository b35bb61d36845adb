"""Small trained models with data, for benchmarks/precision.py: trained here in less than a minute each, from a seed.

Every model is a folder of the cache: `model.onnx` in float32, `calibration.npz` and `unseen.npz` with samples that
share nothing, `timing.npz` with the inputs that are timed, and `case.json`. Images of handwritten digits are those of
scikit-learn, text is the source of the standard library, sequences are random.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import nn

import sardonyx

Feeds = dict[str, np.ndarray]
Samples = list[Feeds]


class Case(msgspec.Struct, frozen=True):
    """A trained model in the cache."""

    name: str
    kind: str  # "transformer", "CNN", "MLP" or "recurrent"
    origin: str  # the package, or "trained here"
    data: str  # what the samples are
    folder: Path
    is_trained: bool = True
    is_counted: bool = True  # another file of the same weights is shown, and not counted
    has_classes: bool = True  # the last axis of the first output holds scores, so that top-1 agreement means something

    @property
    def model(self) -> Path:
        """The float32 file."""
        return self.folder / "model.onnx"

    def samples(self, part: str) -> Samples:
        """Return the samples of "calibration" or "unseen"."""
        return list(_read(self.folder / f"{part}.npz").values())

    def timed(self) -> dict[str, Feeds]:
        """Return the inputs to time, by the name of their size."""
        return _read(self.folder / "timing.npz")


def save_samples(path: Path, samples: Mapping[str, Feeds]) -> None:
    """Write samples by name."""
    arrays: dict[str, Any] = {f"{key}/{name}": array for key, feeds in samples.items() for name, array in feeds.items()}
    np.savez(path, **arrays)


def _read(path: Path) -> dict[str, Feeds]:
    found: dict[str, Feeds] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            sample, name = key.split("/", 1)
            found.setdefault(sample, {})[name] = arrays[key]
    return found


def store(case: Case, calibration: Sequence[Feeds], unseen: Sequence[Feeds], timing: Mapping[str, Feeds]) -> Case:
    """Write the samples and the description of a model whose file is already there."""
    save_samples(case.folder / "calibration.npz", {str(i): feeds for i, feeds in enumerate(calibration)})
    save_samples(case.folder / "unseen.npz", {str(i): feeds for i, feeds in enumerate(unseen)})
    save_samples(case.folder / "timing.npz", timing)
    described = {name: getattr(case, name) for name in case.__struct_fields__ if name != "folder"}
    (case.folder / "case.json").write_bytes(msgspec.json.encode(described))
    return case


def load(folder: Path) -> Case:
    """Return a model that was stored before."""
    return Case(**msgspec.json.decode((folder / "case.json").read_bytes()), folder=folder)


def export(module: nn.Module, inputs: Any, path: Path) -> None:
    """Export, optimize for every runtime and verify; all forms and all peers start from this file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sardonyx.export(module.eval(), inputs, path, dynamic="auto", optimize=True, threads=1, force=True)


def digits(packages: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of scikit-learn's digits, from 0 to 1, and their labels."""
    with gzip.open(packages / "sklearn/datasets/data/digits.csv.gz") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    order = np.random.default_rng(0).permutation(len(table))
    return table[order, :64].reshape(-1, 1, 8, 8) / 16, table[order, 64].astype(np.int64)


def source_text(limit: int = 4_000_000) -> bytes:
    """Return source of the standard library."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    return b"".join(file.read_bytes() for file in files)[:limit]


def fit(module: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], rate: float = 2e-3) -> nn.Module:
    """Minimize the cross entropy with AdamW."""
    steps = list(batches) if not isinstance(batches, list) else batches
    optimizer = torch.optim.AdamW(module.parameters(), rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=len(steps))
    module.train()
    for inputs, labels in steps:
        scores = module(inputs)
        loss = nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return module.eval()


class Patches(nn.Module):
    """Patches of an image as tokens, with positions."""

    def __init__(self, width: int, patch: int = 2) -> None:
        """Project patches to vectors of this width."""
        super().__init__()
        self.project = nn.Conv2d(1, width, patch, patch)
        self.positions = nn.Parameter(torch.randn(1, (8 // patch) ** 2, width) * 0.02)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the tokens."""
        return self.project(image).flatten(2).transpose(1, 2) + self.positions


class Block(nn.Module):
    """A transformer block with normalization first."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        """Attend and transform."""
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tokens after attention and the feed-forward layers."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Pooled(nn.Module):
    """Tokens through blocks, their mean to classes."""

    def __init__(self, tokens: nn.Module, blocks: Iterable[nn.Module], width: int, classes: int = 10) -> None:
        """Put the parts together."""
        super().__init__()
        self.tokens, self.blocks = tokens, nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of the classes."""
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class Mixer(nn.Module):
    """A block of MLP-Mixer."""

    def __init__(self, tokens: int, width: int) -> None:
        """Mix tokens, then channels."""
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 4 * tokens), nn.GELU(), nn.Linear(4 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mixed tokens."""
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Sequences(nn.Module):
    """Token ids to scores at every position, through any body."""

    def __init__(self, vocabulary: int, width: int, length: int, body: nn.Module, classes: int) -> None:
        """Put the parts together."""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.body, self.norm, self.head = body, nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        x = self.body(x)
        return self.head(self.norm(x[0] if isinstance(x, tuple) else x))


class TextCnn(nn.Module):
    """Bytes through convolutions of one axis, their maximum to classes."""

    def __init__(self, classes: int, width: int = 96) -> None:
        """Put the parts together."""
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.convs = nn.Sequential(
            nn.Conv1d(width, 2 * width, 5, 2), nn.ReLU(), nn.Conv1d(2 * width, 2 * width, 5, 2), nn.ReLU()
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return self.head(self.convs(self.embedding(ids).transpose(1, 2)).amax(2))


def _conv(inputs: int, outputs: int, size: int = 3, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6() if groups > 1 else nn.ReLU())


def mlp() -> nn.Module:
    """Return three linear layers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def cnn() -> nn.Module:
    """Return a plain convolutional network."""
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return nn.Sequential(_conv(1, 32), _conv(32, 64), nn.MaxPool2d(2), _conv(64, 128), _conv(128, 128), *head)


def mobile() -> nn.Module:
    """Return a network of depthwise separable convolutions."""
    layers = [_conv(1, 32)]
    for inputs, outputs in ((32, 64), (64, 128), (128, 128), (128, 128)):
        layers += [_conv(inputs, inputs, 3, inputs), _conv(inputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def vit() -> nn.Module:
    """Return a vision transformer."""
    return Pooled(Patches(96), [Block(96, 4) for _ in range(4)], 96)


def mixer() -> nn.Module:
    """Return an MLP-Mixer."""
    return Pooled(Patches(96), [Mixer(16, 96) for _ in range(4)], 96)


DIGITS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "digits-mlp": ("MLP", mlp),
    "digits-cnn": ("CNN", cnn),
    "digits-mobile": ("CNN", mobile),
    "digits-vit": ("transformer", vit),
    "digits-mixer": ("MLP", mixer),
}


def digits_case(name: str, folder: Path, packages: Path, *, epochs: int = 12, samples: int = 128) -> Case:
    """Train on 1,000 digits; calibrate on some of them and judge on others."""
    kind, build = DIGITS[name]
    case = Case(name, kind, "trained here", "scikit-learn digits", folder)
    return image_case(case, build, *digits(packages), epochs=epochs, samples=samples)


def image_case(
    case: Case, build: Callable[[], nn.Module], images: np.ndarray, labels: np.ndarray, *, epochs: int, samples: int
) -> Case:
    """Train on the first 1,000 images; calibrate on some of them and judge on others."""
    torch.manual_seed(0)
    module, batches = build(), []
    for _ in range(epochs):
        batches += [
            (torch.from_numpy(images[rows]), torch.from_numpy(labels[rows]))
            for rows in torch.randperm(1000).view(-1, 50).numpy()
        ]
    fit(module, batches)
    export(module, (torch.from_numpy(images[:2]),), case.model)
    feeds = [{input_name(case.folder): image[None]} for image in images]
    return store(case, feeds[:samples], feeds[1000 : 1000 + 2 * samples], {"1 image": feeds[1000]})


def input_name(folder: Path) -> str:
    """Return the name of the first input of a model."""
    import onnx

    return onnx.load(folder / "model.onnx", load_external_data=False).graph.input[0].name


def _sort(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """16 numbers below 32, and the same in order."""
    ids = rng.integers(0, 32, (count, 16))
    return ids, np.sort(ids, 1)


def _running_sum(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """32 numbers below 8, and their running sums modulo 8."""
    ids = rng.integers(0, 8, (count, 32))
    return ids, np.cumsum(ids, 1) % 8


def _next_byte(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """128 bytes of source text, and the bytes that follow them."""
    text = np.frombuffer(source_text(), np.uint8).astype(np.int64)
    rows = rng.integers(0, len(text) - 129, (count, 1)) + np.arange(129)
    return text[rows[:, :-1]] % 128, text[rows[:, 1:]] % 128


def _which_file(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """256 bytes of one of eight long files of the standard library, and which one it is."""
    names = ("argparse", "datetime", "inspect", "pickle", "subprocess", "tarfile", "threading", "typing")
    home = Path(os.__file__).parent
    found = [home / f"{name}.py" for name in names]
    texts = [np.frombuffer((file if file.exists() else home / "os.py").read_bytes(), np.uint8) for file in found]
    labels = rng.integers(0, len(texts), count)
    starts = [rng.integers(0, max(len(texts[label]) - 256, 1)) for label in labels]
    rows = [texts[label][start : start + 256] for label, start in zip(labels, starts, strict=True)]
    return np.stack([np.resize(row, 256) for row in rows]).astype(np.int64), labels


class _Task(msgspec.Struct, frozen=True):
    kind: str
    data: str
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    build: Callable[[], nn.Module]
    steps: int
    batch: int = 64


def _blocks(count: int, width: int, heads: int, *, causal: bool = False) -> nn.Module:
    return nn.Sequential(*(Block(width, heads, causal=causal) for _ in range(count)))


TASKS: dict[str, _Task] = {
    "sort-transformer": _Task(
        "transformer", "sorting 16 random numbers", _sort, lambda: Sequences(32, 128, 16, _blocks(2, 128, 4), 32), 600
    ),
    "sum-gru": _Task(
        "recurrent",
        "running sums of random numbers",
        _running_sum,
        lambda: Sequences(8, 96, 32, nn.GRU(96, 96, batch_first=True), 8),
        600,
    ),
    "source-gpt": _Task(
        "transformer",
        "source of the standard library, next byte",
        _next_byte,
        lambda: Sequences(128, 192, 128, _blocks(4, 192, 6, causal=True), 128),
        150,
        16,
    ),
    "source-cnn": _Task("CNN", "source of the standard library, which file", _which_file, lambda: TextCnn(8), 300, 32),
}


def task_case(name: str, folder: Path, packages: Path) -> Case:
    """Train on a task whose samples are drawn; calibration and unseen samples are drawn after training."""
    del packages
    torch.manual_seed(0)
    rng, task = np.random.default_rng(0), TASKS[name]
    module = task.build()
    batches = (task.draw(rng, task.batch) for _ in range(task.steps))
    fit(module, [(torch.from_numpy(ids), torch.from_numpy(labels)) for ids, labels in batches])
    ids, _ = task.draw(rng, 192)
    export(module, (torch.from_numpy(ids[:2]),), folder / "model.onnx")
    feeds = [{input_name(folder): row[None]} for row in ids]
    found = Case(name, task.kind, "trained here", task.data, folder)
    return store(found, feeds[:64], feeds[64:], {f"length {ids.shape[1]}": feeds[64]})


HERE: dict[str, Callable[[str, Path, Path], Case]] = {
    **dict.fromkeys(DIGITS, digits_case),
    **dict.fromkeys(TASKS, task_case),
}
