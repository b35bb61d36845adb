"""The forms of a model that benchmarks/precision.py compares: those of `sardonyx.quantize` and those of its peers.

Every form is a function of a model with data and of the file to write. Peers receive the same calibration samples.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import onnx

import sardonyx
from precision_models import Case, Samples
from sardonyx.errors import GateNotMet
from sardonyx.inputs.generator import sizes_of
from sardonyx.ir import io
from sardonyx.runtime.timed import Settings, TimedModel

Form = Callable[[Case, Path], "Note | None"]


class Note(msgspec.Struct, frozen=True):
    """What a form says about itself."""

    precisions: dict[str, int] = {}  # products by recipe
    kept: tuple[str, ...] = ()  # what stays in float32, with the reason
    modules: tuple[str, ...] = ()  # that were kept by choice
    seconds: dict[str, float] = {}


def _ours(to: str, target: str, case: Case, path: Path, **options: Any) -> Note:
    """Quantize with the calibration samples alone; `auto` leaves the model as it is if nothing within is faster."""
    options = {"to": to, "target": target, "data": case.samples("calibration"), "threads": 1, **options}
    if to == "auto":
        options["sizes"] = sizes_of(io.load(case.model), next(iter(case.timed().values())))
    try:
        found = sardonyx.quantize(case.model, path, force=True, **options)
    except GateNotMet as unmet:
        shutil.copy(case.model, path)
        return Note(kept=(str(unmet),))
    recipes: dict[str, int] = {}
    for product in found.products:
        recipes[product.recipe] = recipes.get(product.recipe, 0) + 1
    kept = [f"{group.count} × {group.reason}" for group in found.skipped]
    modules: list[str] = []
    if found.choice is not None:
        groups = [group for group in found.choice.groups if group.chosen == "float32"]
        kept = [f"{group.name}: {group.reason}" for group in groups]
        modules = [module for group in groups for module in group.modules]
    return Note(recipes, tuple(kept), tuple(modules), found.seconds)


def _language(to: str, target: str, budget: str, case: Case, path: Path) -> Note:
    """Keep the modules of a language model that the budget needs; with its cache, those that were kept without it."""
    kept = case.folder.parent / "smollm2" / f"kept-{to}.json"
    if case.name == "smollm2":
        note = _ours(to, target, case, path, budget=budget)
        kept.write_bytes(msgspec.json.encode(note.modules))
        return note
    modules = msgspec.json.decode(kept.read_bytes(), type=list[str])
    return _ours(to, target, case, path, keep_modules=[module.removeprefix("decoder.") for module in modules])


@contextmanager
def _prepared(case: Case) -> Iterator[Path]:
    """Yield the model as ONNX Runtime recommends to prepare it for its quantizers."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = onnx.load(case.model)
    del model.graph.value_info[:]  # quantize_dynamic transposes weights and leaves the shapes that are stated there
    with tempfile.TemporaryDirectory() as folder:
        stripped, path = Path(folder) / "stripped.onnx", Path(folder) / "prepared.onnx"
        onnx.save(model, stripped)
        try:
            quant_pre_process(stripped, path)
        except Exception:  # symbolic shape inference does not know every operator
            quant_pre_process(stripped, path, skip_symbolic_shape=True)
        yield path


def _attention(path: Path) -> list[str]:
    """Return the standard Attention nodes, which quantize_dynamic takes for ONNX Runtime's own of the same name."""
    nodes = onnx.load(path, load_external_data=False).graph.node
    return [node.name for node in nodes if node.op_type == "Attention" and not node.domain]


def _ort_dynamic(per_channel: bool, case: Case, path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    with _prepared(case) as prepared:
        quantize_dynamic(prepared, path, per_channel=per_channel, nodes_to_exclude=_attention(prepared))


class _Reader:
    """The samples as ONNX Runtime's calibration reads them."""

    def __init__(self, samples: Samples) -> None:
        self._samples: Iterator[Any] = iter(samples)

    def get_next(self) -> Any:
        """Return the next sample, or None after the last."""
        return next(self._samples, None)


def _ort_static(per_channel: bool, case: Case, path: Path, ranges: str = "MinMax") -> None:
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, quantize_static

    CalibrationDataReader.register(_Reader)
    reader: Any = _Reader(case.samples("calibration"))
    with _prepared(case) as prepared:
        quantize_static(
            prepared,
            path,
            reader,
            per_channel=per_channel,
            nodes_to_exclude=_attention(prepared),
            calibrate_method=CalibrationMethod[ranges],
        )


def _ort_nbits(bits: int, case: Case, path: Path) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with _prepared(case) as prepared:
        quantizer: Any = MatMulNBitsQuantizer(onnx.load(prepared), bits=bits)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path), False)


def _nncf_weights(mode: str, case: Case, path: Path) -> None:
    """Compress with the defaults; if that fails, without convolutions, and with groups that fit the weights."""
    import nncf  # pyright: ignore[reportMissingImports]  # in a folder of its own

    convolutions = nncf.IgnoredScope(types=["Conv", "ConvTranspose"], validate=False)
    tries: tuple[dict[str, Any], ...] = ({}, {"ignored_scope": convolutions})
    if mode.startswith("INT4"):
        fitting = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST)
        tries += ({"ignored_scope": convolutions, "advanced_parameters": fitting},)
    for number, options in enumerate(tries, 1):
        try:
            found = nncf.compress_weights(onnx.load(case.model), mode=nncf.CompressWeightsMode[mode], **options)
            onnx.save(found, path)
            TimedModel(path, Settings(1)).ready(case.samples("calibration")[0])()
        except Exception:
            if number == len(tries):
                raise
        else:
            return


def _converter_half(case: Case, path: Path) -> None:
    from onnxconverter_common import float16  # pyright: ignore[reportMissingImports]  # in a folder of its own

    onnx.save(float16.convert_float_to_float16(onnx.load(case.model), keep_io_types=True), path)


def _nncf_static(case: Case, path: Path) -> None:
    import nncf  # pyright: ignore[reportMissingImports]  # in a folder of its own

    samples = case.samples("calibration")
    kind = nncf.ModelType.TRANSFORMER if case.kind == "transformer" else None
    found = nncf.quantize(onnx.load(case.model), nncf.Dataset(samples), subset_size=len(samples), model_type=kind)
    onnx.save(found, path)


OURS: dict[str, Form] = {
    "int8": partial(_ours, "int8", "portable"),
    "int8-static": partial(_ours, "int8-static", "portable"),
    "int8-weights": partial(_ours, "int8-weights", "portable"),
    "int4": partial(_ours, "int4", "portable"),
    "int8-weights (ort)": partial(_ours, "int8-weights", "ort"),
    "int4 (ort)": partial(_ours, "int4", "ort"),
    "auto": partial(_ours, "auto", "portable"),
}
LANGUAGE: dict[str, Form] = {  # of the language model alone
    "int8, top-1 ≥ 98 %": partial(_language, "int8", "portable", "top1>=0.98"),
    "int4 (ort), top-1 ≥ 90 %": partial(_language, "int4", "ort", "top1>=0.9"),
}
OURS |= LANGUAGE
PEERS: dict[str, Form] = {
    "quantize_dynamic": partial(_ort_dynamic, False),
    "quantize_dynamic, per channel": partial(_ort_dynamic, True),
    "quantize_static": partial(_ort_static, False),
    "quantize_static, per channel": partial(_ort_static, True),
    "MatMulNBits, 4 bit": partial(_ort_nbits, 4),
    "MatMulNBits, 8 bit": partial(_ort_nbits, 8),
    "NNCF weights, int8": partial(_nncf_weights, "INT8_ASYM"),
    "NNCF weights, int4": partial(_nncf_weights, "INT4_SYM"),
    "NNCF quantize": _nncf_static,
}
SLOW_PEERS: dict[str, Form] = {  # for precision_contest.py alone
    "quantize_static, percentile": partial(_ort_static, True, ranges="Percentile"),
    "quantize_static, entropy": partial(_ort_static, True, ranges="Entropy"),
    "convert_float_to_float16": _converter_half,
}
FORMS = {**OURS, **PEERS}
FORMS["auto"] = FORMS.pop("auto")  # takes longest


def quiet() -> None:
    """Silence the peers' logs."""
    logging.disable(logging.ERROR)
