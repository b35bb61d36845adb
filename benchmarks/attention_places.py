"""Whether every place of attention of the architectures is found, with its heads and mask, before and after.

    python benchmarks/attention_places.py FOLDER [NAME ...]

FOLDER keeps the exports and gets those that are missing: about 4 s each with TorchScript, 20 s with dynamo. Both
exporters, the raw export and what `optimize` makes of it for both targets; looking takes a second a file. What is
expected is what benchmarks/architectures.py configures and hands in. Prints one line a file and the verdict; the exit
code is 1 where anything differs.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from sardonyx import optimize
from sardonyx.errors import SardonyxError
from sardonyx.records.run import AttentionSite

EXPORTERS, TARGETS = ("torchscript", "dynamo"), ("portable", "ort")


class Place(NamedTuple):
    """What is known of an attention from how the model was configured."""

    heads: int
    shared: int  # heads of keys and values
    size: int
    mask: str = ""  # "causal", "input" (handed in), "past" (a cache), "cross", joined by blanks


PLAIN, PADDED = Place(4, 4, 12), Place(4, 4, 12, "input")
EXPECTED: dict[str, list[tuple[int, Place]]] = {
    "bert-tiny": [(2, Place(2, 2, 64, "input"))],
    **{name: [(2, PADDED)] for name in ("bert", "bert-dynamic", "roberta", "distilbert")},
    "gpt2": [(2, Place(4, 4, 12, "causal input"))],
    "gpt2-past": [(2, Place(4, 4, 12, "causal input past"))],
    "llama": [(2, Place(8, 1, 8, "causal input"))],
    "llama-past": [(2, Place(8, 1, 8, "causal input past"))],
    "qwen3": [(2, Place(8, 4, 12, "causal input"))],
    **{name: [(2, PADDED), (2, Place(4, 4, 12, "causal")), (2, Place(4, 4, 12, "input cross"))]
       for name in ("t5", "bart")},
    "whisper": [(2, PLAIN), (2, Place(4, 4, 12, "causal input")), (2, Place(4, 4, 12, "cross"))],
    **{name: [(2, PLAIN)] for name in ("vit", "deit", "sam-vision", "wav2vec2")},
    "swin": [(2, Place(2, 2, 8)), (2, Place(4, 4, 8))],
    "mobilevit": [(2, Place(4, 4, 6)), (4, Place(4, 4, 8)), (3, Place(4, 4, 10))],
    "clip": [(2, PLAIN), (2, Place(4, 4, 12, "causal input"))],
    "cnn-attention": [(1, Place(4, 4, 6))],
    "transformer-encoder": [(2, Place(4, 4, 6))],
    **{name: [] for name in ("sequential", "lstm", "convnext", "resnet-50", "mobilenet-v3", "called-twice")},
}  # fmt: skip


def place(site: AttentionSite) -> Place:
    """What was found, in the same words."""
    told = (("causal", site.causal), ("input", "from an input" in site.mask), ("past", site.cached))
    mask = " ".join(word for word, holds in (*told, ("cross", site.cross)) if holds)
    return Place(site.heads or 0, site.key_value_heads or 0, site.head_size or 0, mask)


def defects(name: str, sites: tuple[AttentionSite, ...]) -> list[str]:
    """What is not as it should be."""
    expected = Counter({one: count for count, one in EXPECTED[name]})
    found = Counter(map(place, sites))
    wrong = [f"missing {count}× {tuple(one)}" for one, count in (expected - found).items()]
    wrong += [f"not expected {count}× {tuple(one)}" for one, count in (found - expected).items()]
    return wrong + [f"only on one side: {site.module}" for site in sites if site.before is None or site.after is None]


def exported(name: str, exporter: str, folder: Path) -> Path:
    """The raw export, made where it is missing."""
    path = folder / f"{name}.{exporter}.onnx"
    if not path.exists():
        import architectures  # here: where all exports are there, torch is not needed

        architectures.export(architectures.build(name), path, exporter, verify="off")
    return path


def main(folder: Path, names: list[str]) -> int:
    """Every architecture, exporter and target."""
    began, wrong, places, files = time.perf_counter(), 0, 0, 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or EXPECTED:
        for exporter in EXPORTERS:
            try:
                path = exported(name, exporter, folder)
            except SardonyxError as refusal:
                print(f"{name:20} {exporter:12} not exported: {refusal.message}")
                continue
            for target in TARGETS:
                sites = optimize(path, target=target, verify="off").attention
                found = defects(name, sites)
                forms = Counter(site.after.operator or "in parts" for site in sites if site.after)
                after = ", ".join(f"{count} {form}" for form, count in forms.items()) or "none"
                print(f"{name:20} {exporter:12} {target:9} {len(sites):3}  {after}  {'; '.join(found) or 'right'}")
                wrong, places, files = wrong + bool(found), places + len(sites), files + 1
    print(f"{files - wrong} of {files} right, {places} places, {time.perf_counter() - began:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
