"""What the runs over many models say: writes docs/what-1000-models-say.md from the results of benchmarks/fleet.py.

    python benchmarks/fleet_findings.py RESULTS --models FOLDER [--page FILE]

It reads the records of `run`, `opportunities` and `timing`. Intervals are of 95 %, from a bootstrap that draws
architectures: exports of one architecture with other seeds and exporters are not independent of each other.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fleet_cluster import table
from fleet_models import MANIFEST

PAGE = Path(__file__).parents[1] / "docs" / "what-1000-models-say.md"
DRAWS = 2000
PASSES, MISSED, CHAINS = 12, 10, 10  # rows of tables
DRAWN = "drawn graphs"
FEWEST = 5  # architectures that an interval needs


class Model(NamedTuple):
    """One model and what the passes did with it."""

    name: str
    architecture: str
    family: str
    exporter: str
    before: int
    after: int
    passes: dict[str, tuple[int, int]]  # rewrites, and nodes saved
    chains: Counter[str]  # pairs of operators that are left, of which the first has one reader

    @property
    def saved(self) -> float:
        """Return the share of nodes saved."""
        return 1 - self.after / self.before if self.before else 0.0

    @property
    def drawn(self) -> bool:
        """Return whether it is a random graph."""
        return self.family == DRAWN


class Interval(NamedTuple):
    """A number with its interval."""

    value: float
    low: float
    high: float

    def percent(self) -> str:
        """Return it in percent."""
        within = f" ({100 * self.low:.0f}–{100 * self.high:.0f})" if np.isfinite(self.low) else ""
        return f"{100 * self.value:.0f} %{within}"

    def number(self) -> str:
        """Return it with two digits."""
        within = f" ({self.low:.2f} to {self.high:.2f})" if np.isfinite(self.low) else ""
        return f"{self.value:.2f}{within}" if np.isfinite(self.value) else "–"


# ------------------------------------------------------------------------------------------ reading


def records_of(folder: Path) -> dict[str, Any]:
    """Return the records in a folder of results, by the name of the model."""
    records = {path: json.loads(path.read_bytes()) for path in folder.glob("*/*.json")}
    named = {path.relative_to(folder).as_posix().removesuffix(".json"): record for path, record in records.items()}
    return {name: each for name, each in named.items() if isinstance(each, dict) and each.get("record") == "run"}


def models_of(rows: Iterable[Mapping[str, Any]], records: Mapping[str, Any]) -> list[Model]:
    """Return the models that have a record, without those that were optimized before they came into the set."""
    return [
        Model(
            row["name"],
            row["architecture"],
            DRAWN if row["origin"] == "drawn" else row["family"],
            row["exporter"] if row["origin"] == "exported" else row["origin"],
            record["before"]["nodes"],
            record["after"]["nodes"],
            {each["name"]: (each["rewrites"], -each["nodes"]) for each in record["passes"] if each["rewrites"]},
            chains(record["wiring_after"]),
        )
        for row in rows
        if not row["optimized"] and (record := records.get(row["name"])) is not None
    ]


def chains(wiring: Mapping[str, Any]) -> Counter[str]:
    """Return the pairs of operators of which the second is the only reader of the first."""
    readers: dict[int, list[int]] = defaultdict(list)
    for producer, consumer in wiring["edges"]:
        readers[producer].append(consumer)
    kept = set(wiring["outputs"].values())
    single = {node: after[0] for node, after in readers.items() if len(after) == 1 and node not in kept}
    return Counter(f"{wiring['ops'][node]} → {wiring['ops'][after]}" for node, after in single.items())


# ------------------------------------------------------------------------------------------ statistics


def interval(models: Sequence[Any], statistic: Callable[[Sequence[Any]], float], seed: int = 0) -> Interval:
    """Return a statistic of models with an interval, by a bootstrap over architectures."""
    groups: dict[str, list[Any]] = defaultdict(list)
    for model in models:
        groups[model.architecture].append(model)
    clusters = list(groups.values())
    rng = np.random.default_rng(seed)
    drawn = [
        statistic([model for index in rng.integers(0, len(clusters), len(clusters)) for model in clusters[index]])
        for _ in range(DRAWS if len(clusters) >= FEWEST else 0)
    ]
    finite = [value for value in drawn if np.isfinite(value)]
    low, high = np.percentile(finite, [2.5, 97.5]) if finite else (float("nan"), float("nan"))
    return Interval(statistic(models), float(low), float(high))


def ranks(values: Sequence[float]) -> np.ndarray:
    """Return the ranks of numbers; equal ones share their mean rank."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Spearman's correlation; NaN if one side does not vary."""
    one, other = (ranks(side) for side in zip(*pairs, strict=True))
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


# ------------------------------------------------------------------------------------------ the page


def page(rows: Sequence[Mapping[str, Any]], results: Path) -> Iterator[str]:
    """Yield the parts of the page."""
    models = models_of(rows, records_of(results / "local"))
    by_name = {model.name: model for model in models}
    yield HEAD.format(
        total=len(rows), count=len(models), real=sum(not model.drawn for model in models), machine=machine_of(results)
    )
    yield from _short(by_name, results)
    yield from _about(rows, by_name)
    yield from _exporters(models)
    yield from _passes(models)
    yield from _missed(by_name, results / "opportunities" / "tables")
    yield from _chains([model for model in models if not model.drawn])
    yield from _times(by_name, results / "timing.jsonl")
    yield REPEAT


HEAD = """# What 1,000 models say

`sardonyx optimize` with verification was run over {total:,} models, of which {count:,} have a result: exports of the
architectures of transformers, timm and torchvision with small configs and seeded weights, trained models that ship in
Python packages, and random graphs of the project's own fuzzer. {real:,} of them are not random graphs; tables are about
these unless they say otherwise. Files that Sardonyx had optimized before are left out.
Intervals in parentheses are of 95 %, from a bootstrap over architectures. Measured on {machine}.
"""

REPEAT = """## Repeat it

```shell
make setup precision
python benchmarks/fleet_models.py fleet/models --packages .venv/precision .venv/lib/python3.11/site-packages
python benchmarks/fleet.py run fleet/results --models fleet/models
python benchmarks/fleet.py opportunities fleet/results --models fleet/models
python benchmarks/fleet.py timing fleet/results --models fleet/models
python benchmarks/fleet_findings.py fleet/results --models fleet/models
```

Weights are seeded and the catalogue has a fixed order, so that the set is the same with the same versions of torch,
transformers, timm and torchvision.
"""


def machine_of(results: Path) -> str:
    """Return the processors that optimized, and the version of the runtime."""
    summary = results / "local" / "summary.json"
    if not summary.exists():
        return "an unknown machine"
    fleet = json.loads(summary.read_bytes())
    processors = {", ".join(machine.split(", ")[1:3]) for machine in fleet["machines"]}  # without host and system
    return f"{'; '.join(sorted(processors))}, ONNX Runtime {fleet['environment']['packages']['onnxruntime']}"


def _short(by_name: Mapping[str, Model], results: Path) -> Iterator[str]:
    """Yield the answers in a few lines."""
    real = [model for model in by_name.values() if not model.drawn]
    saved: Counter[str] = Counter()
    for model in real:
        saved.update({name: nodes for name, (_, nodes) in model.passes.items()})
    first = [name for name, _ in saved.most_common(3)]
    share = interval(real, lambda some: sum(_share_of_saved(some, name) for name in first))
    yield "## In short\n"
    yield f"- Half of the models lose {interval(real, _median_saved).percent()} of their nodes or more."
    yield f"  {_listed(first)} save {share.percent()} of all nodes that are saved."
    tables = results / "opportunities" / "tables"
    if tables.exists():
        found = missed(by_name, tables)
        places = sum(each.places for group in found.values() for each in group)
        (name, reason), most = max(found.items(), key=lambda item: sum(each.places for each in item[1]))
        part = sum(each.places for each in most) / places
        yield f"- {100 * part:.0f} % of the matches that are skipped have one reason: `{name}`: {reason}."
    times = timed(by_name, results / "timing.jsonl")
    if times:
        gained = interval(times, lambda some: float(np.median([1 - each.ratio for each in some])))
        related = interval(times, lambda some: rank_correlation([(each.saved, -each.ratio) for each in some]))
        kinds = Counter(each.finding for each in times)
        yield f"- Beyond what ONNX Runtime finds itself, the median model saves {gained.percent()} of its time. Of"
        yield f"  {len(times)} timed ones, {kinds['faster']} are faster and {kinds['slower']} slower."
        yield f"- Models that save more nodes save more time: the rank correlation is {related.number()}.\n"


def _median_saved(models: Sequence[Model]) -> float:
    return float(np.median([model.saved for model in models]))


def _families(models: Iterable[Model]) -> dict[str, list[Model]]:
    found: dict[str, list[Model]] = defaultdict(list)
    for model in models:
        found[model.family].append(model)
    return dict(sorted(found.items(), key=lambda item: (item[0] == DRAWN, -len(item[1]))))


def _about(rows: Sequence[Mapping[str, Any]], by_name: Mapping[str, Model]) -> Iterator[str]:
    """Yield the models by family with the share of nodes saved."""
    sizes = {row["name"]: row["bytes"] for row in rows}
    lines = []
    for family, models in _families(by_name.values()).items():
        saved = interval(models, lambda some: float(np.median([model.saved for model in some])))
        quartiles = np.percentile([model.saved for model in models], [25, 75])
        lines.append(
            (
                family,
                len(models),
                len({model.architecture for model in models}),
                f"{np.median([sizes[model.name] for model in models]) / 1e6:.1f}",
                f"{np.median([model.before for model in models]):.0f}",
                saved.percent(),
                f"{100 * quartiles[0]:.0f}–{100 * quartiles[1]:.0f} %",
                sum(model.after >= model.before for model in models),
            )
        )
    yield "## How many nodes are saved\n"
    yield "The family of a model follows from its inputs and operators. Sizes and nodes are medians.\n"
    header = ("family", "models", "architectures", "MB", "nodes", "saved, median", "quartiles", "nothing saved")
    yield table(header, lines) + "\n"


def _exporters(models: Sequence[Model]) -> Iterator[str]:
    """Yield the nodes of the architectures that both exporters export, before and after."""
    pairs: dict[str, dict[str, Model]] = defaultdict(dict)
    for model in models:
        pairs[model.architecture].setdefault(model.exporter, model)
    both = [pair for pair in pairs.values() if {"dynamo", "torchscript"} <= pair.keys()]
    if not both:
        return
    lines = []
    for exporter in ("dynamo", "torchscript"):
        some = [pair[exporter] for pair in both]
        saved = interval(some, lambda drawn: float(np.median([model.saved for model in drawn])))
        before, after = (np.median([getattr(model, side) for model in some]) for side in ("before", "after"))
        lines.append((exporter, len(some), f"{before:.0f}", f"{after:.0f}", saved.percent()))
    fewer = sum(pair["dynamo"].after < pair["torchscript"].after for pair in both)
    more = sum(pair["dynamo"].after > pair["torchscript"].after for pair in both)
    yield f"Architectures that both exporters export. After the passes, {fewer} have fewer nodes with dynamo, {more}"
    yield f"with torchscript, and {len(both) - fewer - more} the same number:\n"
    yield table(("exporter", "models", "nodes before", "after", "saved, median"), lines) + "\n"


def _passes(models: Sequence[Model]) -> Iterator[str]:
    """Yield which passes pay, over all models and by family."""
    real = [model for model in models if not model.drawn]
    saved: Counter[str] = Counter()
    for model in real:
        saved.update({name: nodes for name, (_, nodes) in model.passes.items()})
    total = sum(model.before - model.after for model in real)
    best = [name for name, _ in saved.most_common(PASSES)]
    lines = [
        (
            f"`{name}`",
            interval(real, lambda some, name=name: float(np.mean([name in each.passes for each in some]))).percent(),
            f"{sum(model.passes.get(name, (0, 0))[0] for model in real):,}",
            f"{saved[name]:,}",
            interval(real, lambda some, name=name: _share_of_saved(some, name)).percent(),
        )
        for name in best
    ]
    yield "## Which passes pay\n"
    yield f"The {PASSES} passes that save most nodes, of {total:,} saved in all. A pass counts for the nodes it"
    yield "removes itself, not for those that a later pass can remove because of it.\n"
    yield table(("pass", "models it changes", "rewrites", "nodes saved", "share of all saved"), lines) + "\n"
    families = {name: group for name, group in _families(real).items() if len(group) >= FEWEST}
    yield "The share of a family's saved nodes, in percent:\n"
    yield (
        table(
            ("pass", *families),
            [(f"`{name}`", *(_percent(_share_of_saved(group, name)) for group in families.values())) for name in best],
        )
        + "\n"
    )
    used = {name for model in real for name in model.passes}
    rare = [name for name in sorted(used) if sum(name in model.passes for model in real) <= 2]
    only = sorted({name for model in models for name in model.passes} - used)
    if rare:
        yield f"Passes that change one or two of the {len(real):,} models: {_listed(rare)}.\n"
    if only:
        yield f"Passes that change drawn graphs only: {_listed(only)}.\n"


def _share_of_saved(models: Sequence[Model], name: str) -> float:
    total = sum(model.before - model.after for model in models)
    return sum(model.passes.get(name, (0, 0))[1] for model in models) / total if total else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.005 else "·"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


class Missed(NamedTuple):
    """Matches that a pass skips in one model, for one reason."""

    architecture: str
    family: str
    model: str
    places: int


def missed(by_name: Mapping[str, Model], tables: Path) -> dict[tuple[str, str], list[Missed]]:
    """Return the matches that are skipped, by pass and reason, from the tables of a study."""
    by_stem = {name.rpartition("/")[2]: model for name, model in by_name.items() if not model.drawn}
    found: dict[tuple[str, str], list[Missed]] = defaultdict(list)
    for row in _csv(tables / "why_left.csv"):
        if (model := by_stem.get(row["model"])) is not None:
            found[row["pass"], row["reason"]].append(
                Missed(model.architecture, model.family, model.name, int(row["places"]))
            )
    return found


def _csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _missed(by_name: Mapping[str, Model], tables: Path) -> Iterator[str]:
    """Yield the most common missed fusions with the reasons."""
    if not tables.exists():
        return
    found = missed(by_name, tables)
    most = sorted(found.items(), key=lambda item: -len({each.architecture for each in item[1]}))
    lines = [
        (
            f"`{name}`",
            reason,
            f"{sum(each.places for each in places):,}",
            len({each.model for each in places}),
            len({each.architecture for each in places}),
            Counter(each.family for each in places).most_common(1)[0][0],
        )
        for (name, reason), places in most[:MISSED]
    ]
    left = sum(each.places for places in found.values() for each in places)
    yield "## What is never fused, and why\n"
    yield f"Matches that passes skip: {left:,} places with {len(found)} combinations of pass and reason. The {MISSED}"
    yield "found in most architectures; those that need an operator of ONNX Runtime are fused with `--target ort`:\n"
    yield table(("pass", "skipped because", "places", "models", "architectures", "most in"), lines) + "\n"


def _chains(models: Sequence[Model]) -> Iterator[str]:
    """Yield the pairs of operators that are left and take most of the nodes of the average model."""
    shares: dict[str, float] = defaultdict(float)
    places: Counter[str] = Counter()
    for model in models:
        places.update(model.chains)
        for chain, count in model.chains.items():
            shares[chain] += count / max(1, model.after) / len(models)
    lines = [
        (chain, f"{places[chain]:,}", f"{100 * share:.1f} %", interval(models, _holds(chain)).percent())
        for chain, share in sorted(shares.items(), key=lambda item: -item[1])[:CHAINS]
    ]
    yield f"The {CHAINS} most common pairs of operators that are left, of which the second is the only reader of the"
    yield "first. A pass that makes one node of a pair would save one node in each place at most:\n"
    yield table(("pair", "places", "of a model's nodes, mean", "models"), lines) + "\n"


def _holds(chain: str) -> Callable[[Sequence[Model]], float]:
    return lambda models: float(np.mean([chain in model.chains for model in models]))


class Timed(NamedTuple):
    """One timed model."""

    architecture: str
    family: str
    saved: float  # share of nodes
    ratio: float  # time after / before
    finding: str


def timed(by_name: Mapping[str, Model], path: Path) -> list[Timed]:
    """Return the timed models."""
    found: list[Timed] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        model = by_name.get(entry["name"])
        if model is not None:
            found.append(Timed(model.architecture, model.family, model.saved, entry["ratio"], entry["finding"]))
    return found


def _times(by_name: Mapping[str, Model], path: Path) -> Iterator[str]:
    """Yield how time savings follow node savings."""
    models = timed(by_name, path)
    if not models:
        return
    groups = {"all": models}
    for model in models:
        groups.setdefault(model.family, []).append(model)
    lines = []
    for name, some in groups.items():
        kinds = Counter(model.finding for model in some)
        correlation = interval(some, lambda drawn: rank_correlation([(each.saved, -each.ratio) for each in drawn]))
        lines.append(
            (
                name,
                len(some),
                interval(some, lambda drawn: float(np.median([each.saved for each in drawn]))).percent(),
                interval(some, lambda drawn: float(np.median([1 - each.ratio for each in drawn]))).percent(),
                f"{kinds['faster']} / {kinds['slower']}",
                correlation.number(),
            )
        )
    yield "## Nodes saved and time saved\n"
    yield f"{len(models)} architectures, in turn from each family, timed with `sardonyx bench`: CPU time of one thread,"
    yield "with ONNX Runtime's own optimizations on for both, so that the time saved is what the runtime does not find"
    yield "by itself. The correlation is Spearman's, of the share of nodes saved and the share of time saved.\n"
    header = ("family", "models", "nodes saved", "time saved", "faster / slower", "rank correlation")
    yield table(header, lines) + "\n"


def main(words: Sequence[str]) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args(words)
    rows = [json.loads(line) for line in (asked.models / MANIFEST).read_text().splitlines()]
    asked.page.write_text("\n".join(page(rows, asked.results)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
