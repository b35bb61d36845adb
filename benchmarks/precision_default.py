"""What `quantize` writes by default for trained models: gain, loss on unseen data, and budget.

    python benchmarks/precision_default.py --cache FOLDER --packages FOLDER [--only MODEL ...] [--again]
    python benchmarks/precision_default.py --cache FOLDER --table

Every model is quantized with its calibration samples and no option. What is written runs on samples that it has not
seen; those of the models in precision_others.py are of another source. Times are those of interleaved runs of one
thread against the float32 file. Results are stored for each model; `--table` writes them into precision.md.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

import precision
import precision_forms
import precision_table
import sardonyx
from precision_models import HERE, Case
from precision_others import OTHERS
from precision_packages import PACKAGED
from precision_table import Timing
from sardonyx.errors import GateNotMet, SardonyxError
from sardonyx.records.quantization import Quantization

MODELS = HERE | PACKAGED | OTHERS
SECTION = "## The default"
NOT_COUNTED = ("bert-base", "minilm-tokens", "smollm2-cached")  # random weights, or weights of another row
FASTER, SMALLER = 0.9, 0.7  # a gain of at least 10 % of the time, or 30 % of the bytes
NOISE = 1.03
_LIMIT = re.compile(r"(\w+)(<=|>=)([\d.e-]+)")
Outputs = list[list[NDArray[np.generic]]]


class Outcome(msgspec.Struct, frozen=True):
    """What `quantize` did with one model."""

    model: str
    source_bytes: int
    chosen: str = ""  # precisions by number of groups
    budget: tuple[str, ...] = ()
    losses: dict[str, float] = {}  # on unseen samples, by name
    share: float = 1.0  # of the bytes of the source
    time: Timing | None = None  # None: nothing was written
    seconds: float = 0.0  # processor time of quantize, without that of the runtime's process
    refusal: str = ""  # why nothing was written

    @property
    def kept(self) -> bool:
        """Whether the budget is kept on unseen samples."""
        return all(meets(limit, self.losses) for limit in self.budget)

    @property
    def gains(self) -> bool:
        """Whether the result is faster or smaller by the bar, and not slower."""
        return self.time is not None and not self.slower and (self.time.ratio <= FASTER or self.share <= SMALLER)

    @property
    def slower(self) -> bool:
        """Whether the result is slower beyond its interval and the noise of a loaded machine."""
        return self.time is not None and self.time.low > 1 and self.time.ratio > NOISE


def meets(limit: str, losses: dict[str, float]) -> bool:
    """Return whether losses are within one limit of a budget."""
    found = _LIMIT.fullmatch(limit)
    assert found is not None, limit
    name, sign, text = found.groups()
    value = losses.get(name, 0.0 if sign == "<=" else 1.0)
    return value <= float(text) if sign == "<=" else value >= float(text)


def losses_of(reference: Outputs, results: Outputs) -> dict[str, float]:
    """Return relative L2 and cosine of the worst output, and the top-1 agreement of the rows of the first."""
    worst, _, _ = precision.loss(reference, results)
    losses = {"relative_l2": worst, "cosine": 1.0}
    for index in range(len(reference[0])):
        a, b = (
            np.concatenate([row[index].ravel().astype(np.float64) for row in rows]) for rows in (reference, results)
        )
        size = float(np.linalg.norm(a) * np.linalg.norm(b))
        losses["cosine"] = min(losses["cosine"], float(a @ b) / size if size else 1.0)
    if all(row[0].ndim for row in reference) and reference[0][0].shape[-1] > 1:
        losses["top1"] = precision.loss(reference, results)[1]
    return losses


def outcome(store: precision.Store, case: Case) -> Outcome:
    """Quantize a model by default and judge what is written."""
    path = store.file(case, "default")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    size, began = precision.bytes_of(case.model), time.process_time()
    try:
        made: Quantization = sardonyx.quantize(case.model, path, data=case.samples("calibration"), force=True)
    except GateNotMet as unmet:
        return Outcome(case.name, size, seconds=time.process_time() - began, refusal=str(unmet))
    except SardonyxError as failure:
        return Outcome(case.name, size, refusal=f"{type(failure).__name__}: {failure}")
    seconds, choice = time.process_time() - began, made.choice
    assert choice is not None
    samples = case.samples("unseen")
    losses = losses_of(precision.outputs_of(case.model, samples), precision.outputs_of(path, samples))
    timed = next(iter(case.timed().values()))
    timing = precision.raced(store, case, ("default",), timed, 6.0)["default"]
    groups = choice.points[choice.chosen].groups
    chosen = ", ".join(f"{count} {name}" for name, count in groups.items() if count)
    return Outcome(case.name, size, chosen, choice.budget, losses, precision.bytes_of(path) / size, timing, seconds)


def _cells(case: Case, made: Outcome) -> list[str]:
    if made.time is None:
        return [f"`{made.model}`", case.origin, f"{made.source_bytes / 1e6:.2f} MB", made.refusal[:140], *["–"] * 5]
    losses = made.losses
    shown = [f"{losses[name]:.2%}" if name != "cosine" else f"{losses[name]:.5f}" for name in _named(made)]
    time_of = f"{made.time.ratio:.2f} [{made.time.low:.2f}, {made.time.high:.2f}]"
    loss = ", ".join(f"{name} {text}" for name, text in zip(_named(made), shown, strict=True))
    budget = "kept" if made.kept else "missed"
    size = f"{made.source_bytes / 1e6:.2f} MB"
    return [
        f"`{made.model}`",
        case.origin,
        size,
        made.chosen,
        f"{made.share:.2f}",
        time_of,
        loss,
        budget,
        f"{made.seconds:.0f}",
    ]


def _named(made: Outcome) -> list[str]:
    names = [limit.partition("<=")[0].partition(">=")[0] for limit in made.budget]
    return [name for name in ("relative_l2", "cosine", "top1") if name in names and name in made.losses]


def section(rows: dict[str, tuple[Case, Outcome]]) -> str:
    """Return the part of precision.md about the default."""
    counted = {name: made for name, (_, made) in rows.items() if name not in NOT_COUNTED}
    gains, kept = (
        sum(each.gains and each.kept for each in counted.values()),
        sum(each.kept and each.time is not None for each in counted.values()),
    )
    slower = [name for name, each in counted.items() if each.slower]
    missing = [name for name in MODELS if name not in rows and name not in NOT_COUNTED]
    nothing = [name for name, each in counted.items() if each.time is None]
    headings = ("model", "from", "float32", "chosen groups", "bytes", "time", "loss on unseen data", "budget", "CPU s")
    lines = [
        SECTION,
        f"{precision_table.cpu()}, loaded by other work. `quantize` with the calibration samples and no",
        "option. The unseen samples of models marked * are of another source than those for calibration.",
        f"Of {len(counted)} trained models, {gains} gain at least 10 % of the time or 30 % of the bytes within the",
        f"budget on unseen data. {kept} of {len(counted) - len(nothing)} written files keep it; "
        f"slower: {', '.join(slower) or 'none'}; nothing written: "
        f"{', '.join(nothing) or 'none'}. Not measured: {', '.join(missing) or 'none'}.",
        "",
        f"| {' | '.join(headings)} |",
        "| --- " * len(headings) + "|",
    ]
    for name, (case, made) in rows.items():
        first, *cells = _cells(case, made)
        lines.append(f"| {' | '.join([first + (' *' if name in OTHERS else ''), *cells])} |")
    return "\n".join(lines) + "\n\n"


def tabulate(store: precision.Store) -> None:
    """Write the section into the page, in place of the one that is there."""
    paths = {name: store.folder / "default" / f"{name}.json" for name in MODELS}
    rows = {
        name: (store.case(name), msgspec.json.decode(path.read_bytes(), type=Outcome))
        for name, path in paths.items()
        if path.exists()
    }
    precision_table.put(SECTION, section(rows))


def arguments(description: str | None) -> argparse.Namespace:
    """The options of this command and of precision_contest.py."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="models and results, the same for both commands")
    parser.add_argument("--packages", type=Path, required=True, help="as `make precision` has")
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=MODELS, metavar="MODEL")
    parser.add_argument("--again", action="store_true", help="also what is stored")
    parser.add_argument("--table", action="store_true", help="write precision.md")
    return parser.parse_args()


def main() -> None:
    """Quantize what is missing, or tabulate."""
    asked = arguments(__doc__)
    precision.MODELS.update(OTHERS)
    precision_forms.quiet()
    store = precision.Store(asked.cache, asked.packages)
    if asked.table:
        tabulate(store)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in asked.only:
        path = store.folder / "default" / f"{name}.json"
        if path.exists() and not asked.again:
            continue
        try:
            made = outcome(store, store.case(name))
        except (FileNotFoundError, ImportError) as missing:
            print(f"{name:24} {missing}", flush=True)
            continue
        store.write(f"default/{name}.json", made)
        print(
            f"{name:24} {made.chosen or made.refusal} {made.share:.2f} {made.time} {made.losses} {made.kept}",
            flush=True,
        )


if __name__ == "__main__":
    main()
