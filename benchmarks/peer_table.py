"""The best peer beside ours on every reference model: a table for peers.md and a summary for the README.

python benchmarks/peer_table.py     writes the summary anew, from peers.json
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import peers

HERE = Path(__file__).parent
README, DATA = HERE.parent / "README.md", HERE / "peers.json"
START, END = "<!-- peers: written by benchmarks/peer_table.py -->\n", "<!-- end of peers -->\n"
EXPORTER = "dynamo"  # torch's default
PACKAGES = ("onnxslim", "onnxsim", "onnxscript", "onnxruntime")
HEADS = (
    *("model", "exported", "best peer, standard ONNX", "**Sardonyx**", "best peer, the runtime's own operators"),
    *("**Sardonyx** `--target ort`", "with `--fewest-nodes`"),
)


def table(nodes: dict[str, Any]) -> str:
    """The table with its day, from the contest of nodes as it was kept."""
    rows = [_row(each) for each in _rows(nodes)]
    lines = [f"| {' | '.join(HEADS)} |", f"|---|{'---:|' * (len(HEADS) - 1)}", *rows, ""]
    return "\n".join([*lines, f"Measured on {nodes['date']} with {_versions(nodes)}.", ""])


def summary(nodes: dict[str, Any]) -> str:
    """The same in three lines, over all models."""
    rows = _rows(nodes)
    portable, runtime, fewest = (
        [each["ours"][form][0] / min(_right(each["peers"], names).values()) for each in rows]
        for form, names in zip(rows[0]["ours"], (peers.PORTABLE, peers.RUNTIME, peers.RUNTIME), strict=True)
    )
    return (
        f"Compared with the best of {', '.join(PACKAGES)} on each of {len(rows)} models, "
        f"Sardonyx leaves {_share(portable)}\n"
        f"with standard operators, {_share(runtime)} with ONNX Runtime's own, and there {_share(fewest)}\n"
        f"with `--fewest-nodes` (geometric means; [every model and optimizer](benchmarks/peers.md), {nodes['date']}).\n"
    )


def _rows(nodes: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in nodes["data"] if each["exporter"] == EXPORTER]


def _versions(nodes: dict[str, Any]) -> str:
    return ", ".join(f"{name} {nodes['versions'].get(name, '?')}" for name in PACKAGES)


def _share(ratios: list[float]) -> str:
    """The change of the geometric mean in percent, and the number of models on which there are more nodes."""
    mean, more = statistics.geometric_mean(ratios), sum(ratio > 1 for ratio in ratios)
    change = f"{100 * abs(1 - mean):.0f} % {'more' if mean > 1 else 'fewer'} nodes"
    return f"{change} ({f'more on {more} models' if more else 'on no model more'})"


def _row(each: dict[str, Any]) -> str:
    ours = [f"{count:,}" for count, _right, _why in each["ours"].values()]
    portable, runtime = (_best(each["peers"], names) for names in (peers.PORTABLE, peers.RUNTIME))
    cells = (each["model"], f"{each['before']:,}", portable, f"**{ours[0]}**", runtime, f"**{ours[1]}**", ours[2])
    return f"| {' | '.join(cells)} |"


def _best(found: dict[str, tuple[int | None, bool, str]], names: Iterable[str]) -> str:
    """The fewest nodes of those whose result is right, and who left so few."""
    right = _right(found, names)
    fewest = min(right.values())
    return f"{fewest:,} ({', '.join(name for name, count in right.items() if count == fewest)})"


def _right(found: dict[str, tuple[int | None, bool, str]], names: Iterable[str]) -> dict[str, int]:
    """The nodes that each peer left, if its result is right."""
    return {name: count for name in names for count, valid, _why in (found[name],) if valid and count is not None}


def refreshed(page: str, kept: dict[str, Any]) -> str:
    """The page with the summary as it should be."""
    before, _start, rest = page.partition(START)
    return f"{before}{START}{summary(kept['nodes'])}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(refreshed(README.read_text("utf-8"), json.loads(DATA.read_text("utf-8"))), "utf-8")
