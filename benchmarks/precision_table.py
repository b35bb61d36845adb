"""Writes benchmarks/precision.md from the results that benchmarks/precision.py has stored."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from precision_forms import OURS, PEERS, Note
from precision_models import Case

PAGE = Path(__file__).with_name("precision.md")
NEAR = 1.03  # bytes or times that count as equal
LOSS, AGREEMENT = 0.01, 0.99  # the budget of these tables, which was the default of `auto`
FLOAT32 = "float32"
ROUNDING = 1e-5  # relative L2 of a form that changed no precision


LIMITS = """## What these numbers do not show
The samples are few and of one kind each: lines and pages drawn with one font, docstrings, synthetic speech. They tell
forms apart; they do not tell the accuracy on other data. Small models take so little time that overhead decides. Ratios
hold for this CPU and this version of ONNX Runtime; processor time of one thread says nothing about several threads."""


class Timing(msgspec.Struct, frozen=True):
    """The time of one form at one size, relative to the float32 file."""

    milliseconds: float
    ratio: float
    low: float
    high: float
    finding: str
    float32_milliseconds: float


class Result(msgspec.Struct, frozen=True):
    """One form of one model."""

    model: str
    form: str
    bytes: int = 0  # of the file
    constants: int = 0  # bytes of its constants alone: names and tags of nodes weigh in small files only
    relative_l2: float | None = None  # the largest of any output, over all unseen samples
    top1: float | None = None  # share of rows of the first output whose largest element is the same
    rows: int = 0
    seconds: float = 0.0  # to make it
    error: str | None = None
    note: Note | None = None


class Row(msgspec.Struct, frozen=True):
    """A form of a model with its times by size."""

    case: Case
    result: Result
    share: float  # of the bytes of the float32 file
    constants: float  # the same for constants alone
    timing: dict[str, Timing]

    @property
    def loss(self) -> float:
        """The relative L2."""
        return self.result.relative_l2 or 0.0

    @property
    def is_changed(self) -> bool:
        """Whether the form quantized anything."""
        return self.result.error is None and self.loss > ROUNDING

    def within(self) -> bool:
        """Return whether the loss is within the budget of these tables."""
        return self.loss <= LOSS and (self.result.top1 is None or self.result.top1 >= AGREEMENT)

    def time(self, size: str | None = None) -> float | None:
        """Return the time relative to float32, at one size or the first."""
        found = self.timing.get(size) if size else next(iter(self.timing.values()), None)
        return None if found is None else found.ratio


Rows = dict[str, dict[str, Row]]  # by model and form


def cpu() -> str:
    """Return the name of the processor and the instructions that matter here."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.split(":")[1].split() for line in lines if line.startswith(("Features", "flags"))), [])
    known = {"asimd": "NEON", "asimddp": "dot product of 8-bit integers", "i8mm": "8-bit matrix product",
             "asimdhp": "fp16 arithmetic", "bf16": "bf16", "sve": "SVE", "avx2": "AVX2", "avx512f": "AVX-512",
             "avx512_vnni": "VNNI", "avx_vnni": "AVX-VNNI", "amx_int8": "AMX"}  # fmt: skip
    has = [name for flag, name in known.items() if flag in flags]
    lacks = [name for flag, name in known.items() if flag in ("i8mm", "bf16", "avx512_vnni") and flag not in flags]
    part = next((line.split(":")[1].strip() for line in lines if line.startswith("CPU part")), "")
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), None)
    name = model or {"0xd0c": "Neoverse N1", "0xd40": "Neoverse V1", "0xd49": "Neoverse N2"}.get(part, part)
    lacks = [each for each in lacks if (each == "VNNI") == (platform.machine() == "x86_64")]
    missing = f"; without {' and '.join(lacks)}" if lacks else ""
    return f"{name} ({platform.machine()}) with {', '.join(has)}{missing}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def page(cases: Sequence[Case], rows: Rows, extra: str) -> str:
    """Return the whole page."""
    trained = [case for case in cases if case.is_trained and case.is_counted]
    parts = [
        _head(trained, rows),
        _auto(trained, rows),
        _transformers(cases, rows),
        _sizes(cases, rows),
        _peers(trained, rows),
        _language(rows),
        extra,
        _all(cases, rows),
        _failures(cases, rows),
        LIMITS,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def put(heading: str, section: str) -> None:
    """Write a section into the page, in place of the one that is there, before the last."""
    text = re.sub(rf"{heading}\n.*?(?=\n## )\n", "", PAGE.read_text(), flags=re.DOTALL)
    last = LIMITS.partition("\n")[0]
    before, mark, after = text.partition(f"\n{last}")
    PAGE.write_text(f"{before}\n{section}{mark.lstrip()}{after}")


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(each) + " |" for each in (head, ["---"] * len(head), *lines)]
    return "\n".join(rows)


def _most_sensitive(kept: Sequence[str], shown: int = 5) -> str:
    """Return the modules that lose most alone, as `NAME: relative L2 X alone` says, and how many others there are."""
    ordered = sorted(kept, key=lambda text: -float((re.findall(r"relative L2 ([\d.e-]+)", text) or ["0"])[0]))
    more = f"; {len(kept) - shown} more" if len(kept) > shown else ""
    return "; ".join(ordered[:shown]) + more


def _percent(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def _ratio(timing: Timing | None) -> str:
    return "–" if timing is None else f"{timing.ratio:.2f} [{timing.low:.2f}, {timing.high:.2f}]"


def _head(trained: Sequence[Case], rows: Rows) -> str:
    packaged = sum(case.origin != "trained here" for case in trained)
    lines = []
    for case in trained:
        plain = rows[case.name][FLOAT32]
        timed = next((row.timing for row in rows[case.name].values() if row.timing), {})
        times = ", ".join(f"{t.float32_milliseconds:.3g} ms ({size})" for size, t in timed.items()) or "–"
        counts = f"{len(case.samples('calibration'))} / {len(case.samples('unseen'))}"
        size = f"{plain.result.bytes / 1e6:.2f} MB"
        lines.append([f"`{case.name}`", case.kind, case.origin, case.data, counts, size, times])
    return f"""# Trained models in lower precision
Written by `python benchmarks/precision.py --table`; made by the same script, which says how. {cpu()}.
ONNX Runtime {version("onnxruntime")}, NNCF {_version("nncf")}, onnx {version("onnx")}, one thread. Times are ratios of
interleaved runs over the float32 file with their 95 % intervals; processor time, which leaves out other work on the
machine.

{len(trained)} trained models, {packaged} of them of packages. Every form starts from the same float32 file: that of the
package at opset 17 after `sardonyx optimize`, or the export of `sardonyx export --optimize`. Every form that needs data
gets the calibration samples. The loss is measured on the unseen samples: relative L2 of the outputs (the largest if
there are several), and top-1 agreement where the last axis holds classes.

{_table(["model", "kind", "from", "data", "calibration / unseen", "float32", "time"], lines)}"""


def _auto(trained: Sequence[Case], rows: Rows) -> str:
    lines, inside, slower, judged = [], 0, 0, 0
    for case in trained:
        row = rows[case.name].get("auto")
        if row is None or row.result.error is not None:
            continue
        judged += 1
        inside += row.within()
        slow = [size for size, timing in row.timing.items() if timing.finding == "slower"]
        slower += bool(slow)
        times = "; ".join(f"{_ratio(timing)} ({size})" for size, timing in row.timing.items()) or "–"
        verdict = "yes" if row.within() else "**no**"
        note = row.result.note or Note()
        chosen = ", ".join(f"{count} × {recipe}" for recipe, count in note.precisions.items()) or "float32"
        cells = [
            f"`{case.name}`",
            _percent(row.loss),
            _percent(row.result.top1),
            verdict,
            f"{row.share:.3f}",
            times,
            chosen,
        ]
        lines.append(cells)
    if not judged:
        return ""
    return f"""## `--to auto` within 1 %
The budget is relative L2 ≤ 1 % and top-1 agreement ≥ 99 %, which was the default for all models.
On unseen data {inside} of {judged} are within it;
{slower} are slower than float32.

{_table(["model", "relative L2", "top-1", "within", "bytes", "time", "products"], lines)}"""


def _transformers(cases: Sequence[Case], rows: Rows) -> str:
    lines = []
    for case in cases:
        found = rows[case.name]
        sizes = next((list(row.timing) for row in found.values() if row.timing), [])
        if case.kind != "transformer" or not sizes:
            continue
        for size in sizes:
            ours = [row for form, row in found.items() if form in OURS and row.time(size) is not None]
            ours = [row for row in ours if not case.is_trained or row.within()]
            best = min(ours, key=lambda row: row.time(size) or 9.0, default=None)
            if best is None:
                lines.append([f"`{case.name}`", size, "none within the budget", "–", "–"])
                continue
            loss = _percent(best.loss) if case.is_trained else f"({_percent(best.loss)}, random weights)"
            lines.append([f"`{case.name}`", size, best.result.form, _ratio(best.timing[size]), loss])
    return f"""## Transformers: the fastest form within relative L2 ≤ 1 % and top-1 agreement ≥ 99 %
`bert-base` has random weights: it shows speed only.

{_table(["model", "size", "form", "time", "relative L2"], lines)}"""


def _sizes(cases: Sequence[Case], rows: Rows) -> str:
    lines = []
    for case in cases:
        found = rows[case.name]
        shares = [
            found[form].share if form in found and found[form].result.error is None else None
            for form in ("int8", "int8-weights (ort)", "int4", "int4 (ort)")
        ]
        if any(share is not None and share < 0.4 for share in shares):
            shown = ["–" if share is None else f"{share:.3f}" for share in shares]
            lines.append([f"`{case.name}`", f"{found[FLOAT32].result.bytes / 1e6:.2f} MB", *shown])
    head = ["model", "float32", "int8", "int8-weights (ort)", "int4", "int4 (ort)"]
    return f"""## Bytes relative to float32, where products hold most weights
{_table(head, lines)}"""


def compared(rows: dict[str, Row]) -> Iterator[tuple[str, str, Row, Row]]:
    """Yield each peer with that of our forms, or float32, which loses least at equal bytes, and at equal time."""
    ours = [row for form, row in rows.items() if form == FLOAT32 or (form in OURS and row.is_changed)]
    for form, peer in rows.items():
        if form not in PEERS or not peer.is_changed:
            continue
        size = next(iter(peer.timing), None)
        costs = {"bytes": {row.result.form: row.constants for row in ours}}
        if size is not None:
            costs["time"] = {row.result.form: time for row in ours if (time := _time(row, size)) is not None}
        for by, cost in costs.items():
            limit = peer.constants if by == "bytes" else peer.timing[size or ""].ratio
            near = [row for row in ours if cost.get(row.result.form, 0.0) >= limit / NEAR]
            near = [row for row in near if cost[row.result.form] <= limit * NEAR]
            less = [row for row in ours if cost.get(row.result.form, 9.0) <= limit * NEAR and row.loss < peer.loss]
            if near or less:
                yield form, by, peer, min(near + less, key=lambda row: row.loss)


def _time(row: Row, size: str) -> float | None:
    return 1.0 if row.result.form == FLOAT32 else row.time(size)


class Outcome(msgspec.Struct, frozen=True):
    """A peer's form of a model beside ours at equal bytes or equal time."""

    model: str
    peer: str
    by: str  # "bytes" or "time"
    theirs: float
    ours: float
    form: str

    @property
    def is_less(self) -> bool:
        """Whether our loss is less."""
        return self.ours < self.theirs

    @property
    def is_no_more(self) -> bool:
        """Whether our loss is at most 1.01 × theirs: a tie counts."""
        return self.ours <= 1.01 * self.theirs


def outcomes(trained: Sequence[Case], rows: Rows) -> list[Outcome]:
    """Return all comparisons with peers."""
    return [
        Outcome(case.name, peer, by, theirs.loss, ours.loss, ours.result.form)
        for case in trained
        for peer, by, theirs, ours in compared(rows[case.name])
    ]


def _models(found: Sequence[Outcome], rows: Rows, by: Sequence[str], *, ties: bool) -> int:
    """Count the models where the loss is less than that of every peer, at equal bytes or time as `by` says."""
    count = 0
    for model in rows:
        peers: dict[str, bool] = {}
        if len(by) > 1:  # a peer beside which there is none of ours is not beaten
            peers = {form: False for form, row in rows[model].items() if form in PEERS and row.is_changed}
        for each in found:
            if each.model == model and each.by in by:
                peers[each.peer] = peers.get(each.peer, False) or (each.is_no_more if ties else each.is_less)
        count += bool(peers) and all(peers.values())
    return count


def _peers(trained: Sequence[Case], rows: Rows) -> str:
    found = outcomes(trained, rows)
    table: list[list[str]] = []
    for peer in PEERS:
        line = [peer]
        for by in ("bytes", "time"):
            some = [each for each in found if each.peer == peer and each.by == by]
            less, ties = sum(each.is_less for each in some), sum(each.is_no_more and not each.is_less for each in some)
            line.append(f"{less} of {len(some)}" + (f" ({ties} ties)" if ties else "") if some else "–")
        table.append(line)
    lost = [
        [f"`{each.model}`", each.by, each.peer, _percent(each.theirs), f"{each.form}: {_percent(each.ours)}"]
        for each in found
        if not each.is_less
    ]
    seen = {(each.model, each.peer) for each in found}
    for case in trained:
        for form, row in rows[case.name].items():
            if form in PEERS and row.is_changed and (case.name, form) not in seen:
                lost.append([f"`{case.name}`", "neither", form, _percent(row.loss), "none as small or as fast"])
    counted, total = {case.name: rows[case.name] for case in trained}, len(trained)
    ways = (("bytes", "time"), ("bytes",), ("time",))
    counts = [[_models(found, counted, by, ties=ties) for ties in (False, True)] for by in ways]
    text = [f"{less} ({tied} with ties)" for less, tied in counts]
    return f"""## Beside the peers
A peer's file is compared with our form of the least loss among those of equal bytes, and among those of equal time (at
the first size); equal is within 3 %, and a form that is smaller or faster and loses less counts too. Bytes are those of
the constants: names and tags of nodes weigh in small files only. Float32 is one of our forms: a file that saves nothing
must lose nothing. Peers' forms that changed nothing are left out. A tie is a loss of up to 1.01 × theirs. The loss is
less than that of every peer at equal bytes or equal time on {text[0]} of {total} models; at equal bytes on {text[1]},
at equal time on {text[2]}.

{_table(["peer", "less loss at equal bytes", "less loss at equal time"], table)}

Where it is not less:

{_table(["model", "equal", "peer", "its loss", "ours"], lost)}"""


def _language(rows: Rows) -> str:
    """Return the table of the language model: agreement over all unseen tokens, and tokens a second with the cache."""
    whole, cached = rows.get("smollm2", {}), rows.get("smollm2-cached", {})
    lines = []
    for form, row in whole.items():
        if not row.is_changed:
            continue
        step = cached[form].timing.get("1 token") if form in cached else None
        speed = (
            "–"
            if step is None
            else f"{1000 / step.milliseconds:.1f} ({step.float32_milliseconds / step.milliseconds:.2f} ×)"
        )
        name = f"**{form}**" if form in OURS else form
        note = row.result.note or Note()
        kept = _most_sensitive(note.kept) if form in OURS else ""
        size = f"{row.result.bytes / 1e6:.0f} MB ({row.share:.3f})"
        lines.append([name, _percent(row.result.top1), _percent(row.loss), size, speed, kept])
    if not lines:
        return ""
    plain = next(iter(whole.values())).result
    return f"""## SmolLM2-135M
Top-1 agreement with float32 over {plain.rows:,} tokens of docstrings that no form has seen; float32 takes
{plain.bytes / 1e6:.0f} MB. Tokens a second: one token after 127 with the cache, one thread, beside float32 in the same
race.

{_table(["form", "top-1", "relative L2", "bytes", "tokens a second", "kept in float32"], lines)}"""


def _all(cases: Sequence[Case], rows: Rows) -> str:
    parts = ["## All forms", "Relative L2 on unseen data, top-1 agreement, bytes and time relative to float32."]
    for case in cases:
        lines = []
        for form in (*OURS, *PEERS):
            row = rows[case.name].get(form)
            if row is None or not row.is_changed:
                continue
            times = "; ".join(f"{_ratio(timing)} ({size})" for size, timing in row.timing.items()) or "–"
            name = f"**{form}**" if form in OURS else form
            lines.append([name, _percent(row.loss, 3), _percent(row.result.top1), f"{row.share:.3f}", times])
        parts.append(f"### {case.name}\n{_table(['form', 'relative L2', 'top-1', 'bytes', 'time'], lines)}")
    return "\n\n".join(parts)


def _failures(cases: Sequence[Case], rows: Rows) -> str:
    """Return what could not be made."""
    lines = [
        [f"`{case.name}`", form, (row.result.error or "").replace("|", "/")[:160]]
        for case in cases
        for form, row in rows[case.name].items()
        if row.result.error
    ]
    unchanged = [
        f"`{case.name}` ({form})"
        for case in cases
        for form, row in rows[case.name].items()
        if form != FLOAT32 and not row.result.error and not row.is_changed
    ]
    text = f"## Forms that could not be made\n{_table(['model', 'form', 'error'], lines)}" if lines else ""
    return text + (f"\n\nForms that changed nothing: {', '.join(unchanged)}." if unchanged else "")
