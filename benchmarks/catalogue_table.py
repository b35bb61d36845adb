"""The catalogue's table: a row for every model, the figures over all of them, and the causes of what failed."""

from __future__ import annotations

import json
import platform
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from fresh_inputs import RIGHT, tag_cell

Row = dict[str, Any]
NAMES = "models.txt"  # of all models, beside their results
LIMIT = 60  # CPU seconds of one stage
PAGE = Path(__file__).parent / "catalogue.md"
PACKAGES = ("torch", "transformers", "timm", "torchvision", "onnx", "onnxscript", "onnxruntime")
TITLES = (
    *("model", "class", "size", "exported", "verified", "root share", "nodes raw → portable → ort", "s", "verify s"),
    *("plain torch", "other sizes", "tags", "unreached", "at", "reason"),
)
MOST_CAUSES = 10
MOST_WORDS = 9
MOST_NAMES = 8
_ERROR = re.compile(r"[A-Z]\w+(Error|Exception|SymNode|Unsupported)\b")
_STAGES = {
    "model": "not built",
    "inputs": "no example inputs found",
    "before": "not built, or no inputs found, in time",
    "export": "export fails",
    "verification": "verification fails",
    "proof": "verification fails",  # in results of earlier versions
    "whole": "not done in time, or crashed",
}


def read(folder: Path) -> list[Row]:
    """All results there are, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


# Questions about a row


def ours(row: Row) -> Row:
    """What Sardonyx made of it."""
    return row.get("ours", {})


def plain(row: Row) -> Row:
    """What plain torch made of it."""
    return row.get("plain") or {}


def export_seconds(row: Row) -> float:
    """CPU seconds of our export, without deriving inputs and without verification, as plain torch has neither."""
    seconds = ours(row)["seconds"]
    return seconds["export"] + seconds["writing"]


def is_silent(row: Row) -> bool:
    """Whether modules were not reached by the derived inputs, and the record of the written file does not say so."""
    said = ours(row).get("unreached") or [note for note in ours(row).get("notes", ()) if "reach" in note]
    return bool(ours(row).get("verified") and row.get("unread") and not said)


def reason(row: Row) -> str:
    """Why a model is not exported and verified, "" where it is."""
    if "unbuildable" in row:
        return f"not built: {row['unbuildable']}"
    if ours(row).get("verified"):
        faults = [ours(row)[key] for key in ("portable_error", "ort_error") if key in ours(row)]
        return f"not optimized: {faults[0]}" if faults else ""
    return f"{_STAGES[ours(row).get('stage', 'whole')]}: {ours(row).get('error', '')}"


def cause(row: Row) -> str:
    """A reason without what is particular to its model: the stage, the kind of error and its first words."""
    stage, _, text = reason(row).partition(": ")
    text = text[found.start() :] if (found := _ERROR.search(text)) else text
    text = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|<[^>]*>|\b\w+(Model|Config|For[A-Z]\w+)\b", "…", text)
    text = re.sub(r"[-+]?\d[\d.,e+-]*|\[[^]]*\]", "N", text)
    return f"{stage}: {' '.join(text.split()[:MOST_WORDS])}"


# Figures


def summary(rows: Sequence[Row]) -> list[str]:
    """What the rows of the exporter that plain torch uses say together."""
    mine = [row for row in rows if row["exporter"] == "dynamo"]
    built = [row for row in mine if "unbuildable" not in row]
    theirs = [row for row in built if plain(row).get("exported")]
    both = [row for row in theirs if ours(row).get("exported")]
    verified = [row for row in theirs if ours(row).get("verified")]
    only = [row for row in built if ours(row).get("verified") and not plain(row).get("exported")]
    wrong = [row for row in theirs if plain(row)["answers"] != "same"]
    ratios = [export_seconds(row) / plain(row)["seconds"] for row in verified if not ours(row).get("dynamic")]
    fresh = [row for row in rows if "fresh" in row]
    right = [row for row in fresh if row["fresh"].get("answer", "").startswith(RIGHT)]
    others = sorted(row["name"] for row in fresh if row not in right)
    tagged = [row for row in fresh if tag_cell(row["fresh"].get("tags")) == RIGHT]
    silent = [row for row in built if is_silent(row)]
    unreached = [row for row in built if ours(row).get("exported") and row.get("unread")]
    dynamic = [row for row in mine if row.get("dynamic")]
    exact = [row for row in dynamic if plain(row).get("answers") == "same"]
    missed = [row for row in exact if not ours(row).get("verified")]
    script = [row for row in rows if row["exporter"] == "torchscript" and "unbuildable" not in row]
    lines = [
        f"{len(built)} of {len(mine)} models could be built; {_count(built, 'exported')} are exported, "
        f"{_count(built, 'verified')} of them verified.",
        f"Plain torch exports {len(theirs)} of them; of these Sardonyx exports {len(both)} and verifies "
        f"{len(verified)} ({_percent(len(verified), len(theirs))}).",
        f"Only Sardonyx exports, verified: {len(only)}{_names(only)}.",
        f"Plain torch's file does not answer what the module does: {len(wrong)}{_names(wrong)}.",
        f"Inputs leave modules unreached in {len(unreached)} models, without a note in {len(silent)}{_names(silent)}.",
        f"Nodes without a module (root share): {_median(built, 'root'):.2%} in the median, "
        f"{max((ours(row).get('root', 0) for row in built), default=0):.1%} at most.",
        f"With dynamic dimensions and torch.export, {len(dynamic)} models were run, {_count(dynamic, 'verified')} are "
        f"verified. Plain torch exports {len(exact)} of the {len(dynamic)} right, without dynamic dimensions; of these "
        f"Sardonyx verifies {len(exact) - len(missed)}, not: "
        f"{', '.join(sorted(row['name'] for row in missed)) or 'none'}.",
        f"On other values, {len(right)} of {len(fresh)} files answer what the module does, "
        f"{sum(' + ' in row['fresh']['answer'] for row in right)} of them in other sizes; not: "
        f"{', '.join(others) or 'none'}.",
        f"Tags are right in {len(tagged)} of {len(fresh)} files.",
        f"With TorchScript, one in three: {_count(script, 'exported')} of {len(script)} exported, "
        f"{_count(script, 'verified')} verified.",
    ]
    if ratios:
        spread = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        lines.append(
            f"CPU time of the export without verification, relative to plain torch's, where no "
            f"dimension is dynamic: median {spread[1]:.2f}, "
            f"IQR {spread[0]:.2f} to {spread[2]:.2f}."
        )
    return [f"- {line}" for line in lines]


def _count(rows: Iterable[Row], key: str) -> int:
    return sum(bool(ours(row).get(key)) for row in rows)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"


def _names(rows: Sequence[Row]) -> str:
    return f" ({', '.join(sorted(row['name'] for row in rows))})" if rows else ""


def _median(rows: Iterable[Row], key: str) -> float:
    found = [ours(row)[key] for row in rows if key in ours(row)]
    return statistics.median(found) if found else 0.0


def causes(rows: Iterable[Row]) -> Iterator[str]:
    """The commonest causes with their models, in ten lines."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        if reason(row):
            grouped.setdefault(cause(row), []).append(row)
    ordered = sorted(grouped.items(), key=lambda item: -len(item[1]))
    most = ordered if len(ordered) <= MOST_CAUSES else ordered[: MOST_CAUSES - 1]
    for text, members in most:
        names = [f"{row['name']}{' (TorchScript)' * (row['exporter'] != 'dynamo')}" for row in members]
        shown = ", ".join(names[:MOST_NAMES])
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        yield f"- {len(members)} × {text}: {shown}{more}"
    if rest := ordered[len(most) :]:
        yield f"- {sum(len(members) for _, members in rest)} with causes of their own, see the table"


# The page


def cells(row: Row) -> list[str]:
    """One row of the table."""
    mine, theirs, fresh = ours(row), plain(row), row.get("fresh", {})
    parameters = f"{row['parameters'] / 1e6:.1f} M, {row['size']}" if "parameters" in row else ""
    counts = " → ".join(str(mine.get(key, "–")) for key in ("nodes", "portable", "ort")) if "nodes" in mine else "–"
    seconds = f"{export_seconds(row):.1f}" if "seconds" in mine else "–"
    phases = mine.get("seconds", {})
    verification = phases.get("verification", phases.get("proof"))  # the latter in results of earlier versions
    verified = "–" if verification is None else f"{verification:.1f}"
    words = "–"
    if theirs.get("exported"):
        words = f"{theirs['seconds']:.1f} s" + (f", {theirs['answers']}" if theirs["answers"] != "same" else "")
    elif "error" in theirs:
        words = f"fails: {theirs['error']}"
    yes: Callable[[str], str] = lambda key: "yes" if mine.get(key) else "no"  # noqa: E731
    root = f"{mine['root']:.1%}" if "root" in mine else "–"
    unreached = str(len(row["unread"])) if row.get("unread") else ""
    return [
        *(row["name"], row.get("class", "–"), parameters, yes("exported"), yes("verified"), root, counts, seconds),
        *(verified, words, fresh.get("answer", fresh.get("error", "")), tag_cell(fresh.get("tags"))),
        *(unreached, row["commit"], reason(row)),
    ]


def line(row: Row) -> str:
    """One row as Markdown."""
    return "| " + " | ".join(re.sub(r"\s+", " ", cell.replace("|", "/"))[:160] for cell in cells(row)) + " |"


def page(rows: Sequence[Row], everything: Sequence[str]) -> str:
    """The whole page, which says how many of all models were run."""
    versions = ", ".join(f"{name} {version}" for name in PACKAGES if (version := _version(name)))
    commits = Counter(row["commit"] for row in rows)
    tried = {(row["library"], row["name"]) for row in rows}
    at = ", ".join(f"{commit} ({count} rows)" for commit, count in commits.most_common())
    longer = sorted(f"{row['name']} ({row['limit']} s)" for row in rows if row.get("limit", LIMIT) != LIMIT)
    machines = " and ".join(sorted({row["machine"] for row in rows}))
    lines = [
        "# The catalogue",
        "",
        "One small model for each model package of transformers, each family of torchvision and each module of timm,",
        "on example inputs derived without help, compared with `torch.onnx.export(dynamo=True)` on the same inputs.",
        'Newer rows, also all with "other sizes" and "tags", were exported with `dynamic="auto"`, older ones with no',
        "dynamic dimension. What plain torch made of a model is kept when its row is measured again.",
        "Measured by `python benchmarks/catalogue.py RESULTS`, and with `--exporter torchscript`; `--table` writes it.",
        f"{versions}, Python {platform.python_version()}, {machines}, one thread. Seconds are CPU seconds.",
        f"Rows were measured at commit {at}.",
        f"A stage is stopped after {LIMIT} s of CPU, with other limits for: {', '.join(longer) or 'none'}.",
        f"The catalogue has {len(everything)} models, in random order; {len(tried)} were run.",
        "",
        *summary(rows),
        "",
        "## Causes",
        "",
        *causes(rows),
    ]
    for exporter, library in sorted({(row["exporter"], row["library"]) for row in rows}):
        chosen = [row for row in rows if (row["exporter"], row["library"]) == (exporter, library)]
        lines += ["", f"## {library}, {exporter}", "", f"| {' | '.join(TITLES)} |", f"|{'---|' * len(TITLES)}"]
        lines += [line(row) for row in chosen]
    return "\n".join(lines) + "\n"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def write(folder: Path, output: Path = PAGE) -> None:
    """The page of all results in a folder."""
    output.write_text(page(read(folder), (folder / NAMES).read_text().split()))
