"""The section of `locate` on the page, with a run and without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import sardonyx
from reporting.sample_location import sample_location
from reporting.sample_run import sample_run
from sardonyx.records.comparison import LocatedModel
from sardonyx.records.run import Artifact
from sardonyx.reporting.verdict import location_sentence


def test_a_location_without_a_run_has_a_page(tmp_path: Path) -> None:
    record = tmp_path / "location.json"
    record.write_bytes(sample_location().to_json())
    text = sardonyx.report(record).text
    assert "encoder.0 is the first module that differs and causes 90 % of the error" in text
    assert "after encoder.0: 10 % of the squared error is left" in text
    assert text.count('data-section="location"') == 1


def test_a_module_that_differs_first_need_not_cause_the_error() -> None:
    location = sample_location()
    assert location.module is not None
    harmless = replace(location, module=replace(location.module, share=0.001))
    assert "encoder.0 is the first module that differs but causes almost none of the error" in location_sentence(
        harmless
    )


def test_every_form_of_a_location() -> None:
    assert "Share of the error, by module" in sardonyx.report(sample_location(), format="markdown").text
    pictures = sardonyx.report([sample_location(), sample_location()], format="svg").files
    assert [text[:4] for text in pictures.values()] == ["<svg", "<svg"]


def test_equal_models_have_a_picture_too() -> None:
    same = replace(sample_location(), same=True, module=None, shares=(), substitutions=(), borders=0, error=0.0)
    (picture,) = sardonyx.report(same, format="svg").files.values()
    assert picture.count("<circle") == 0


def test_locations_are_not_compared() -> None:
    with pytest.raises(sardonyx.UsageError, match="there is none: the given Location is a location"):
        sardonyx.report([sample_location(), sample_location()], compare=True)


@pytest.mark.parametrize("belongs", [True, False])
def test_a_location_of_the_files_of_a_run_is_a_section(belongs: bool) -> None:
    run = sample_run()
    location = sample_location()
    if belongs:
        files = (_located(run.source), _located(run.result))
        location = replace(location, first=files[0], second=files[1])
    text = sardonyx.report([run, location]).text
    assert ('data-section="location"' in text) is belongs
    assert ("is a location of other files: left out" in text) is not belongs


def _located(artifact: Artifact) -> LocatedModel:
    return LocatedModel(artifact.path or "", "onnx", "onnxruntime")


def test_a_list_of_several_locations_comes_first() -> None:
    text = sardonyx.report([sample_location(), sample_location()]).text
    first = text.index('id="section=overview"')
    assert first < text.index('data-section="location"')
    assert '<a href="#section=location&amp;model=1">' in text[first : text.index('data-section="location"')]
    assert 'id="section=overview"' not in sardonyx.report(sample_location()).text
