"""`sardonyx.report`: which records belong together, what is written, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import sardonyx
from reporting.sample_export import sample_export
from reporting.sample_location import sample_location
from reporting.sample_quantization import sample_choice, sample_quantization
from reporting.sample_run import sample_run, sample_verdict
from reporting.sample_run_bundle import analysis_of_run, bench_of_run, profile_of_run
from sardonyx.errors import OutputError, UsageError
from sardonyx.records.export import ExampleInput
from sardonyx.reporting.run_bundle import quantization_bundles, record_groups, run_bundles


def write(path: Path, record: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(record.to_json())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with every record that may be beside it, and unrelated files."""
    place = tmp_path / "run"
    run = sample_run()
    write(place / "run.json", run)
    inputs = (ExampleInput("x", "int64", (2, 16), {0: "batch"}),)  # numbers as keys, which JSON does not have
    write(place / "export.json", replace(sample_export(run.source.sha256), inputs=inputs))
    write(place / "times.json", bench_of_run())
    write(place / "profile.json", profile_of_run())
    write(place / "analysis.json", analysis_of_run())
    (place / "package.json").write_text('{"name": "somebody else\'s"}')
    (place / "broken.json").write_text("{")
    (place / "verdict.json").write_bytes(sample_verdict().to_json())
    (place / "model.onnx").write_bytes(b"\xff\xfe")
    return place


def test_a_folder_becomes_one_bundle_with_any_file_names(folder: Path) -> None:
    (bundle,) = run_bundles(record_groups([folder]))
    assert bundle.label == "model"
    assert bundle.run == sample_run()
    assert bundle.export is not None
    assert bundle.point is not None
    assert bundle.profiled is not None
    assert bundle.forms is not None
    assert bundle.notes == ()


def test_a_quantization_joins_the_run_of_its_source_or_is_shown_alone(folder: Path, tmp_path: Path) -> None:
    made = sample_choice()
    groups = record_groups([folder, write(tmp_path / "q.json", made)])
    assert run_bundles(groups)[0].quantization == made
    assert quantization_bundles(groups) == []
    assert "1 in int8, 1 in float32" in sardonyx.report([folder, tmp_path / "q.json"], format="markdown").text
    other = replace(made, source=replace(made.source, path="other.onnx", sha256="1" * 64))
    groups = record_groups([folder, write(tmp_path / "other.json", other)])
    (bundle,), (alone,) = run_bundles(groups), quantization_bundles(groups)
    assert (bundle.quantization, bundle.notes) == (None, ())
    assert (alone.label, alone.quantization) == ("other", other)


def test_a_quantization_alone_has_a_page_markdown_and_plots(tmp_path: Path) -> None:
    path = write(tmp_path / "auto.json", sample_choice())
    page = sardonyx.report(path, tmp_path / "q.html")
    assert (page.bundles, [each.label for each in page.quantizations]) == ((), ["model"])
    assert '<section data-section="precision"' in page.text
    assert list(sardonyx.report(path, format="svg").files) == ["front.svg", "sensitivity.svg"]
    assert "1 in int8, 1 in float32" in sardonyx.report(path, format="markdown").text
    located = sample_location()
    names = [replace(located.first, name="model.onnx"), replace(located.second, name="small.onnx")]
    located = replace(located, first=names[0], second=names[1])
    assert '<section data-section="location"' in sardonyx.report([sample_choice(), located]).text
    plain = write(tmp_path / "int8.json", sample_quantization())
    assert (
        "0.877 of the time of the source"
        in sardonyx.report([plain, write(tmp_path / "times.json", bench_of_run())]).text
    )
    both = sardonyx.report([path, plain])
    assert [each.label for each in both.quantizations] == ["model (auto)", "model (int8)"]
    assert both.text.count('<article class="model"') == 2
    with pytest.raises(UsageError, match="two runs can be compared, not 0"):
        sardonyx.report([path, plain], compare=True)


def test_records_given_one_by_one_are_bundled(folder: Path) -> None:
    (bundle,) = run_bundles(record_groups([str(folder / "times.json"), folder / "run.json"]))
    assert bundle.bench is not None
    assert bundle.profile is None


def test_a_record_given_beside_a_folder_joins_its_run(folder: Path, tmp_path: Path) -> None:
    outside = (folder / "export.json").rename(tmp_path / "export.json")
    (bundle,) = run_bundles(record_groups([folder, outside]))
    assert bundle.export is not None
    other = write(tmp_path / "other" / "run.json", sample_run())
    first, second = run_bundles(
        record_groups([folder, other, outside])
    )  # a record with its own run belongs to that run
    assert (first.export is not None, second.export is not None) == (True, False)


def test_records_in_memory_are_bundled_like_files() -> None:
    (bundle,) = run_bundles(record_groups([bench_of_run(), sample_run()]))
    assert bundle.bench is not None


def test_a_record_of_other_files_is_left_out_with_a_note(folder: Path) -> None:
    bench = bench_of_run()
    write(folder / "times.json", replace(bench, files=(bench.files[0], replace(bench.files[1], sha256="00" * 32))))
    (bundle,) = run_bundles(record_groups([folder]))
    assert bundle.bench is None
    assert bundle.notes == ("times.json is a benchmark of other files: left out",)


def test_names_are_compared_where_there_are_no_hashes(folder: Path) -> None:
    bench = bench_of_run()
    write(folder / "times.json", replace(bench, files=tuple(replace(each, sha256=None) for each in bench.files)))
    (bundle,) = run_bundles(record_groups([folder]))
    assert bundle.bench is not None
    profile = profile_of_run()
    other = replace(profile, models=(profile.models[0], replace(profile.models[1], path="other.onnx")))
    write(folder / "profile.json", other)
    assert run_bundles(record_groups([folder]))[0].profile is None


def test_a_second_record_of_a_kind_is_left_out_with_a_note(folder: Path) -> None:
    write(folder / "times2.json", bench_of_run())
    (bundle,) = run_bundles(record_groups([folder]))
    assert bundle.notes == ("times2.json: a benchmark is already given",)


def test_a_record_of_another_version_in_a_folder_gives_a_note(folder: Path) -> None:
    document = msgspec.json.decode((folder / "times.json").read_bytes()) | {"schema_version": 99}
    (folder / "times.json").write_bytes(msgspec.json.encode(document))
    (bundle,) = run_bundles(record_groups([folder]))
    assert bundle.bench is None
    assert "times.json is a benchmark of schema version 99" in bundle.notes[0]


def test_an_export_that_optimized_is_a_run_of_its_own(tmp_path: Path) -> None:
    run = sample_run()
    made = replace(sample_export(run.result.sha256), optimized=run, result=run.result)
    (bundle,) = run_bundles(record_groups([write(tmp_path / "export.json", made)]))
    assert bundle.run == run
    assert bundle.export == made
    assert bundle.label == "small"


def test_two_runs_of_one_model_get_different_labels(tmp_path: Path) -> None:
    for name in ("monday", "tuesday"):
        write(tmp_path / name / "run.json", sample_run())
        write(tmp_path / f"{name}.json", sample_run())
    by_name = run_bundles(record_groups([tmp_path / "monday.json", tmp_path / "tuesday.json"]))
    assert [each.label for each in by_name] == ["model (monday)", "model (tuesday)"]
    by_folder = run_bundles(record_groups([tmp_path / "monday", tmp_path / "tuesday"]))
    assert [each.label for each in by_folder] == ["model (monday)", "model (tuesday)"]
    twice = run_bundles(record_groups([tmp_path / "monday.json"] * 2))
    assert [each.label for each in twice] == ["model (1)", "model (2)"]
    at_hand = run_bundles(record_groups([sample_run(), sample_run()]))
    assert [each.label for each in at_hand] == ["model (1)", "model (2)"]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda place: write(place / "b.json", bench_of_run()), "there is none: .*b.json is a benchmark"),
        (lambda place: place, "there is no run in"),
        (lambda place: place / "nothing.json", "cannot be read"),
        (lambda place: _text(place / "a.json", "[]"), "no record of sardonyx"),
        (lambda place: _text(place / "a.json", "{}"), "no record of sardonyx"),
        (lambda place: _text(place / "a.json", "run:"), "not JSON"),
        (lambda place: _bytes(place / "v.json", sample_verdict().to_json()), "is a verdict, and a report"),
        (lambda place: _changed(place, schema_version=99), "schema version 99"),
        (lambda place: _changed(place, events="none"), "not a complete record"),
    ],
)
def test_input_that_is_no_run_is_refused_in_one_line(tmp_path: Path, made: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        sardonyx.report(made(tmp_path))
    assert "\n" not in caught.value.message
    assert caught.value.hint


def _text(path: Path, text: str) -> Path:
    return _bytes(path, text.encode())


def _bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _changed(place: Path, **fields: object) -> Path:
    return _bytes(place / "r.json", msgspec.json.encode(msgspec.json.decode(sample_run().to_json()) | fields))


def test_a_folder_with_several_runs_is_refused(tmp_path: Path) -> None:
    other = replace(sample_run(), result=replace(sample_run().result, sha256="00" * 32))
    write(tmp_path / "a.json", sample_run())
    write(tmp_path / "b.json", other)
    with pytest.raises(UsageError, match="contains several runs"):
        sardonyx.report(tmp_path)


def test_the_output_name_determines_the_format(tmp_path: Path) -> None:
    made = sardonyx.report(sample_run(), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == made.text
    assert made.text.startswith("<!doctype html>")
    made = sardonyx.report(sample_run(), tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text(encoding="utf-8").startswith("### ")
    with pytest.raises(UsageError, match=r"the format of .* is unknown"):
        sardonyx.report(sample_run(), tmp_path / "page.pdf")
    with pytest.raises(UsageError, match="no format 'pdf'"):
        sardonyx.report(sample_run(), format="pdf")  # pyright: ignore[reportArgumentType]


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    place = tmp_path / "page.html"
    place.write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        sardonyx.report(sample_run(), place)
    assert place.read_text() == "mine"
    sardonyx.report(sample_run(), place, force=True)
    assert place.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["page.html"]


def test_a_page_is_the_same_every_time(folder: Path) -> None:
    assert sardonyx.report(folder).text == sardonyx.report(folder).text


def test_a_run_without_page_data_is_shown(tmp_path: Path) -> None:
    document = msgspec.json.decode(sample_run().to_json())
    for name in ("wiring_before", "wiring_after", "attention", "fingerprint", "tuning", "notes"):
        del document[name]
    for event in document["events"]:
        for node in (*event["before"], *event["after"]):
            for name in ("inputs", "outputs", "owner"):
                del node[name]
    for module in document["modules"]:
        del module["parameters"], module["bytes_before"], module["bytes_after"]
    path = _bytes(tmp_path / "old.json", msgspec.json.encode(document))
    for form in ("html", "markdown", "svg"):
        assert sardonyx.report(path, format=form).files


def test_a_comparison_takes_two_runs() -> None:
    with pytest.raises(UsageError, match="two runs can be compared, not 1"):
        sardonyx.report(sample_run(), compare=True)
    with pytest.raises(UsageError, match="two runs can be compared, not 3"):
        sardonyx.report([sample_run()] * 3, compare=True)
    page = sardonyx.report([sample_run(), sample_run()], compare=True).text
    assert "The same result both times" in page


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to report"):
        sardonyx.report([])


@pytest.mark.slow
def test_rendering_needs_neither_torch_nor_onnx_nor_a_runtime(tmp_path: Path) -> None:
    path = write(tmp_path / "run.json", sample_run())
    code = (
        "import sys; from sardonyx.reporting.report import report; "
        f"assert report({str(path)!r}).text and report({str(path)!r}, format='markdown').text; "
        "print([name for name in ('torch', 'onnx', 'onnx_ir', 'onnxruntime', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
