"""Architectures whose family is known, at small sizes: what the fingerprint is judged on.

    python benchmarks/family_zoo.py FOLDER EXPORTER [NAME ...]      exports what FOLDER has not got yet

Built from configs, nothing is downloaded. Architectures of one lineage (a design and its descendants) are one group,
and a group is held out as a whole. The families follow docs/fingerprint.md and were written down before the rules.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import torch

import family_others
import family_transformers
import zoo
from family_makers import Subject

SPLIT_SEED = 6


def subjects() -> list[Subject]:
    """Every architecture."""
    return [*family_transformers.SUBJECTS, *family_others.SUBJECTS]


def held_out() -> set[str]:
    """The lineages that the rules were not written on: half of each family's, drawn before anything was looked at."""
    draw = random.Random(SPLIT_SEED)
    held: set[str] = set()
    everyone = subjects()
    for family in dict.fromkeys(subject.family for subject in everyone):
        groups = sorted({subject.group for subject in everyone if subject.family == family})
        held.update(draw.sample(groups, (len(groups) + 1) // 2))
    return held


def export(subject: Subject, path: Path, exporter: str) -> None:
    """Write one architecture's raw export."""
    torch.manual_seed(zoo.SEED)
    model, inputs = subject.build()
    part = path.with_suffix(".part")
    zoo.export(zoo.ready(model).eval(), inputs, part, exporter)
    part.rename(path)


def main(arguments: list[str]) -> None:
    """Export what is missing."""
    folder, exporter, *names = Path(arguments[0]), *arguments[1:]
    folder.mkdir(parents=True, exist_ok=True)
    for subject in subjects():
        path = folder / f"{subject.name}.{exporter}.onnx"
        if path.exists() or (names and subject.name not in names):
            continue
        began = time.perf_counter()
        try:
            export(subject, path, exporter)
            said = "exported"
        except Exception as problem:  # an exporter may refuse anything in any way; the list says what is missing
            said = f"not exported: {type(problem).__name__}: {' '.join(str(problem).split())[:150]}"
        print(f"{subject.name:30s} {exporter:12s} {time.perf_counter() - began:5.1f} s  {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
