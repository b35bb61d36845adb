"""Input specifications are parsed exactly, or refused with a correct example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sardonyx.errors import UsageError
from sardonyx.records.input_specs import (
    DTYPES,
    Constant,
    DynamicRequest,
    Spec,
    check_names,
    parse_dynamic,
    parse_input,
    parse_inputs,
    read_arrays,
    resolve_axes,
)
from sardonyx.reporting.formatting import with_flags

names = st.from_regex(r"[a-z_][a-z0-9_.]{0,12}", fullmatch=True)


@pytest.mark.slow
@given(names, st.sampled_from(DTYPES), st.lists(st.integers(1, 9999), max_size=5))
def test_a_written_spec_reads_back(name: str, dtype: str, shape: list[int]) -> None:
    spec = Spec(name, dtype, tuple(shape))
    assert parse_input(str(spec)) == spec


@pytest.mark.parametrize(
    "text", ["", "x", "x=", "x=float32", "x=float32[2", "x=float32[2,]", "x=float32[a]", "x=float32[0]",
             "x=float32[-1]", "=float32[2]", "x=float32[2][3]", "x float32[2]"],
)  # fmt: skip
def test_a_malformed_input_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_input(text)
    assert "\n" not in caught.value.message
    assert caught.value.hint is not None
    assert parse_input(with_flags(caught.value.hint).split()[-1])  # the example in the hint is valid


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("-0.5", -0.5), ("1e3", 1000.0), ("True", True), ("false", False), ("none", None), ("mean", "mean"),
     ("'3'", "3"), ("a=b", "a=b")],
)  # fmt: skip
def test_a_value_is_given_to_an_argument_that_is_no_tensor(text: str, value: object) -> None:
    (given,) = parse_inputs([f"how={text}"]).values()
    assert given == Constant(value)  # pyright: ignore[reportArgumentType]
    assert type(given.value) is type(value)  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("text", ["x=", "x=float32", "=3", "x"])
def test_what_is_neither_a_specification_nor_a_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an input specification"):
        parse_inputs([text])


def test_an_unknown_element_type_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="floot32") as caught:
        parse_input("x=floot32[2]")
    assert "float32" in (caught.value.hint or "")


def test_an_input_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        parse_inputs(["x=int64[1]", "x=int64[2]"])


@pytest.mark.parametrize(
    ("texts", "request_"),
    [
        ([], DynamicRequest(False, {})),
        (["auto"], DynamicRequest(True, {})),
        (["x:0=batch", "auto", "x:-1=time"], DynamicRequest(True, {"x": {0: "batch", -1: "time"}})),
        (["past_key_values.0.key:2=past"], DynamicRequest(False, {"past_key_values.0.key": {2: "past"}})),
    ],
)
def test_dynamic_dims_are_read(texts: list[str], request_: DynamicRequest) -> None:
    assert parse_dynamic(texts) == request_


@pytest.mark.parametrize(
    "text", ["", "x", "x:0", "x:a=batch", "x:0=", "x:0=1b", "x=batch", "x:0=a b", "x:0=b", "autos"]
)
def test_a_malformed_dynamic_dim_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_dynamic(["x:0=a", text] if text == "x:0=b" else [text])
    assert caught.value.hint


def test_axes_are_counted_from_the_front_and_must_exist() -> None:
    shapes = {"x": (2, 3, 4)}
    assert resolve_axes(parse_dynamic(["x:-1=w", "x:0=b"]), shapes) == {"x": {2: "w", 0: "b"}}
    for wrong, message in (("x:3=w", "no axis 3"), ("y:0=b", "no input 'y'")):
        with pytest.raises(UsageError, match=message):
            resolve_axes(parse_dynamic([wrong]), shapes)
    with pytest.raises(UsageError, match="twice"):
        resolve_axes(parse_dynamic(["x:-1=w", "x:2=v"]), shapes)


def test_an_unknown_name_lists_the_nearest() -> None:
    with pytest.raises(UsageError, match="inptu_ids") as caught:
        check_names(["inptu_ids"], ["input_ids", "attention_mask"])
    assert caught.value.hint == "did you mean input_ids?"


def test_arrays_are_read_and_other_files_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    assert read_arrays(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]
    (tmp_path / "b.npz").write_text("no archive")
    for name in ("b.npz", "missing.npz"):
        with pytest.raises(UsageError, match="cannot read inputs"):
            read_arrays(tmp_path / name)


def test_parsing_needs_no_torch() -> None:
    code = "import sys, sardonyx.records.input_specs; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
