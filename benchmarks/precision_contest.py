"""What `quantize` writes by default beside the files of its peers that keep the same budget: who is faster or smaller.

    python benchmarks/precision_contest.py --cache FOLDER --packages FOLDER [--only MODEL ...] [--again]
    python benchmarks/precision_contest.py --cache FOLDER --packages FOLDER --table

Follows precision_default.py, whose results are in the cache. Peers are ONNX Runtime's quantizers, NNCF and the float16
converter of onnxconverter-common, with the same calibration samples. A file of a peer takes part if it keeps, on the
unseen samples, the budget that `quantize` chose. Those are timed in turns with ours. Where nothing was written, the
float32 file is ours. `--table` writes the section into precision.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

import precision
import precision_forms
import precision_table
from precision_default import MODELS, NOT_COUNTED, Outcome, arguments, losses_of, meets
from precision_forms import PEERS, SLOW_PEERS
from precision_models import Case
from precision_others import OTHERS
from precision_table import FLOAT32, Timing

SECTION = "## The default beside the peers"
LONGEST = 120  # seconds that a peer may take for one file
EQUAL = 1.03  # in bytes, and in time unless the interval says that it is noise
FORMS = {**PEERS, **SLOW_PEERS}
_OVER = "over the budget"


class Entry(msgspec.Struct, frozen=True):
    """The file of one peer."""

    form: str
    share: float = 1.0  # of the constants of the source; names of nodes weigh in small files only
    losses: dict[str, float] = {}
    within: bool = False
    time: Timing | None = None  # relative to ours
    error: str = ""


class Contest(msgspec.Struct, frozen=True):
    """Our file of one model and those of the peers."""

    model: str
    ours: Outcome
    share: float  # of our file, as those of the entries
    budget: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def within(self) -> list[Entry]:
        """The files that keep the budget on unseen samples."""
        return [entry for entry in self.entries if entry.within]

    @property
    def faster(self) -> list[Entry]:
        """The files that are clearly faster than ours."""
        return [each for each in self.within if each.time and each.time.high < 1 and each.time.ratio < 1 / EQUAL]

    @property
    def smaller(self) -> list[Entry]:
        """The files that are clearly smaller than ours."""
        return [each for each in self.within if each.share * EQUAL < self.share]

    @property
    def dominated(self) -> list[Entry]:
        """The files that are better in one and not worse in the other."""
        faster, smaller = ([each.form for each in some] for some in (self.faster, self.smaller))
        return [
            each
            for each in self.within
            if (each.form in faster and each.share <= self.share * EQUAL)
            or (each.form in smaller and each.time is not None and each.time.low <= 1)
        ]


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {LONGEST} s")


def _share(case: Case, path: Path) -> float:
    return precision.constants_of(path) / precision.constants_of(case.model)


def _entry(store: precision.Store, case: Case, form: str, budget: tuple[str, ...]) -> Entry:
    path = store.file(case, form)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not path.exists():
            with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):  # peers leave files where they run
                signal.alarm(LONGEST)
                FORMS[form](case, path)
                signal.alarm(0)
        samples = case.samples("unseen")
        losses = losses_of(precision.outputs_of(case.model, samples), precision.outputs_of(path, samples))
        kept = all(meets(limit, losses) for limit in budget)
        return Entry(form, _share(case, path), losses, kept)
    except Exception as failure:  # a form that cannot be made is a result
        path.unlink(missing_ok=True)
        return Entry(form, error=" ".join(f"{type(failure).__name__}: {failure}".split())[:200])
    finally:
        signal.alarm(0)


def contest(store: precision.Store, case: Case, ours: Outcome) -> Contest:
    """Make the files of the peers, and time those within the budget beside ours."""
    budget = ours.budget or _budget(ours)
    entries = [_entry(store, case, form, budget) for form in FORMS]
    reference = "default" if ours.time is not None else FLOAT32
    within = [entry.form for entry in entries if entry.within]
    times: dict[str, Timing] = {}
    for start in range(0, len(within), precision.TOGETHER):
        batch = within[start : start + precision.TOGETHER]
        times |= precision.raced(store, case, batch, next(iter(case.timed().values())), 6.0, reference)
    timed = tuple(msgspec.structs.replace(entry, time=times.get(entry.form)) for entry in entries)
    return Contest(case.name, ours, _share(case, store.file(case, reference)), budget, timed)


def _budget(ours: Outcome) -> tuple[str, ...]:
    """Return the budget that a refusal names."""
    found = re.search(r"budget ([\w<>=.,e -]+?) (?:is|;)|budget ([^;]+);", ours.refusal)
    assert found is not None, ours.refusal
    return tuple((found[1] or found[2]).split(", "))


def _place(made: Contest) -> str:
    if made.ours.time is not None and not made.ours.kept:
        return _OVER
    fastest, smallest = not made.faster, not made.smaller
    if fastest and smallest:
        return "fastest and smallest"
    return "fastest" if fastest else "smallest" if smallest else "neither"


def _named(entry: Entry | None, made: Contest) -> str:
    if entry is None or entry.time is None:
        return "–"
    time = f"{entry.time.ratio:.2f} [{entry.time.low:.2f}, {entry.time.high:.2f}]"
    return f"{entry.form}: {time}, {entry.share / made.share:.2f}"


def section(contests: dict[str, Contest]) -> str:
    """Return the part of precision.md about the default and the peers."""
    counted = {name: made for name, made in contests.items() if name not in NOT_COUNTED}
    best = sum(_place(made) not in ("neither", _OVER) for made in counted.values())
    both = sum(_place(made) == "fastest and smallest" for made in counted.values())
    beaten = [name for name, made in counted.items() if made.dominated]
    lines = [
        SECTION,
        f"{precision_table.cpu()}, loaded by other work. The files of `quantize` above, beside those of",
        f"{len(FORMS)} forms of ONNX Runtime, NNCF 3.4.0 and onnxconverter-common 1.16.0 that keep the same budget on",
        "the unseen samples; calibration samples are the same. Times and bytes (of the constants) are relative to",
        f"ours: above 1, ours is faster or smaller. {EQUAL - 1:.0%}, and a time whose interval holds 1, is a tie.",
        f"Of {len(counted)} models, ours is the fastest or the smallest on {best}, both on {both}.",
        f"A peer's file is better in one and no worse in the other on: {', '.join(beaten) or 'none'}.",
        "",
        "| model | ours: bytes, time | within the budget | fastest of them | smallest of them | ours is | reason |",
        "| --- " * 7 + "|",
    ]
    for name, made in contests.items():
        timed = [each for each in made.within if each.time is not None]
        fastest = min(timed, key=lambda each: each.time.ratio if each.time else 1, default=None)
        smallest = min(timed, key=lambda each: each.share, default=None)
        time = f"{made.ours.time.ratio:.2f}" if made.ours.time is not None else "float32"
        ours = f"{made.share:.2f}, {time}"
        cells = [f"`{name}`", ours, f"{len(made.within)} of {sum(not each.error for each in made.entries)}"]
        cells += [_named(fastest, made), _named(smallest, made), _place(made), REASONS.get(name, "")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n"


REASONS = {
    "voice-in-if": "chords: its probability is at most 0.17 there, and differs by at most 0.006; the state loses 0.4 %",
    "old-recognition": "photographs of text: 13 of 1280 characters change",
}


def tabulate(store: precision.Store) -> None:
    """Write the section into the page, in place of the one that is there."""
    paths = {name: store.folder / "contest" / f"{name}.json" for name in MODELS}
    contests = {
        name: msgspec.json.decode(path.read_bytes(), type=Contest) for name, path in paths.items() if path.exists()
    }
    precision_table.put(SECTION, section(contests))


def main() -> None:
    """Make what is missing, or tabulate."""
    asked = arguments(__doc__)
    sys.path.append(str(asked.packages))
    precision.MODELS.update(OTHERS)
    precision_forms.quiet()
    signal.signal(signal.SIGALRM, _too_long)
    store = precision.Store(asked.cache, asked.packages)
    if asked.table:
        tabulate(store)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in asked.only:
        path, done = store.folder / "default" / f"{name}.json", store.folder / "contest" / f"{name}.json"
        if not path.exists() or (done.exists() and not asked.again):
            continue
        made = contest(store, store.case(name), msgspec.json.decode(path.read_bytes(), type=Outcome))
        store.write(f"contest/{name}.json", made)
        for entry in made.entries:
            time = f"{entry.time.ratio:.3f} [{entry.time.low:.3f}, {entry.time.high:.3f}]" if entry.time else ""
            shown = {key: round(value, 5) for key, value in entry.losses.items()}
            print(f"{name:22} {entry.form:30} {entry.within!s:5} {entry.share:.3f} {time} {shown} {entry.error}")
        print(f"{name:22} ours {made.share:.3f}: {_place(made)}", flush=True)


if __name__ == "__main__":
    main()
