"""The README's table beside the peers: the nodes of every reference model, from what the campaign kept.

python benchmarks/peer_table.py     writes the table anew, from peers.json
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import peers

HERE = Path(__file__).parent
README, DATA = HERE.parent / "README.md", HERE / "peers.json"
START, END = "<!-- peers: written by benchmarks/peer_table.py -->\n", "<!-- end of peers -->\n"
EXPORTER = "dynamo"  # torch's default
HEADS = (
    *("model", "exported", "best peer, standard ONNX", "**Sardonyx**", "best peer, the runtime's own operators"),
    *("**Sardonyx** `--target ort`", "with `--fewest-nodes`"),
)


def table(nodes: dict[str, Any]) -> str:
    """The table with its day, from the contest of nodes as it was kept."""
    rows = [_row(each) for each in nodes["data"] if each["exporter"] == EXPORTER]
    versions = ", ".join(
        f"{name} {nodes['versions'][name]}" for name in ("onnxslim", "onnxsim", "onnxscript", "onnxruntime")
    )
    lines = [f"| {' | '.join(HEADS)} |", f"|---|{'---:|' * (len(HEADS) - 1)}", *rows, ""]
    return "\n".join([*lines, f"Measured on {nodes['date']} with {versions}.", ""])


def _row(each: dict[str, Any]) -> str:
    ours = [f"{count:,}" for count, _right, _why in each["ours"].values()]
    portable, runtime = (_best(each["peers"], names) for names in (peers.PORTABLE, peers.RUNTIME))
    cells = (each["model"], f"{each['before']:,}", portable, f"**{ours[0]}**", runtime, f"**{ours[1]}**", ours[2])
    return f"| {' | '.join(cells)} |"


def _best(found: dict[str, tuple[int | None, bool, str]], names: Iterable[str]) -> str:
    """The fewest nodes of those whose result is right, and who left so few."""
    right = {name: count for name in names for count, valid, _why in (found[name],) if valid and count is not None}
    fewest = min(right.values())
    return f"{fewest:,} ({', '.join(name for name, count in right.items() if count == fewest)})"


def refreshed(page: str, kept: dict[str, Any]) -> str:
    """The page with the table as it should be."""
    before, _start, rest = page.partition(START)
    return f"{before}{START}{table(kept['nodes'])}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    README.write_text(refreshed(README.read_text("utf-8"), json.loads(DATA.read_text("utf-8"))), "utf-8")
