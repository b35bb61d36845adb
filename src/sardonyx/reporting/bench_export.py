"""A Benchmark as Markdown for a pull request and as CSV for a spreadsheet: one line a round, every digit kept."""

from __future__ import annotations

import csv
import io

from sardonyx.records.bench import Benchmark
from sardonyx.reporting import formatting, markdown
from sardonyx.reporting.bench import bench_sentence, columns, facts, rows, size_of, verdict


def benchmark_markdown(found: Benchmark) -> str:
    """A page: the sentence, the table, what was measured on."""
    heads = columns(found)
    shown = markdown.table([each.heading for each in heads], rows(found), right=[each.right for each in heads])
    conditions = "\n".join(f"- {markdown.escaped(f'{key}: {value}')}" for key, value in facts(found).items())
    blocks = [
        f"# {markdown.escaped(' and '.join(each.label for each in found.files))}",
        f"**{markdown.escaped(bench_sentence(found))}.**",
        shown,
        _verdicts(found),
        "\n".join(f"- {markdown.escaped(note)}" for note in found.notes),
        f"<details><summary>Measured on</summary>\n\n{conditions}\n\n</details>",
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def benchmark_csv(found: Benchmark) -> str:
    """One line for each round of each file at each size."""
    dims = list(found.points[0].sizes)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["file", *map(formatting.visible, dims), "round", "seconds"])
    for point in found.points:
        for timing in point.timings:
            label = formatting.visible(timing.label)
            for number, seconds in enumerate(timing.seconds, 1):
                writer.writerow([label, *(point.sizes[dim] for dim in dims), number, repr(seconds)])
    return stream.getvalue()


def _verdicts(found: Benchmark) -> str:
    """Each size in words, where there are several."""
    if len(found.points) == 1:
        return ""
    lines = [
        f"- {markdown.escaped(f'at {size_of(point, found)}: {verdict(each, point.timings[0])}')}"
        for point in found.points
        for each in point.timings[1:]
    ]
    return "\n".join(lines)
