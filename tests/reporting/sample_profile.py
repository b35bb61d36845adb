"""A handmade Profile: equal layers, a kernel with a body, a fused one, an unattributed one, and hostile names."""

from __future__ import annotations

from msgspec.structs import replace

from reporting.sample_run import sample_run
from sardonyx.records.bench import KernelTime, ModuleTime, Profile, ProfiledModel, Slice, TracedBy

LAYERS = 3
HOSTILE = 'evil|<b>&"\x1b[31m\n`x`'


def sample_profile() -> Profile:
    """The file before and after; the second needs half the time in its layers."""
    before = _model("before.onnx", 2.0)
    after = replace(_model("after.onnx", 1.0), notes=("the runtime put in 2 kernels",))
    options = {"threads": 1, "provider": "cpu", "level": "all", "sizes": {"batch": 2}, "seed": 0, "runs": 7}
    return Profile(sample_run().environment, options, (before, after), {"run": 1.5}, ("a note",))


def _kernel(name: str, op_type: str, owner: str | None, ms: float, by: TracedBy = TracedBy.NAME) -> KernelTime:
    nodes = () if owner is None else (f"/{name}", f"/{name}_1") if by is TracedBy.VALUES else (f"/{name}",)
    return KernelTime(name, op_type, "cpu", nodes, () if owner is None else (owner,), owner, by, ms, 1)


def _model(label: str, layer_ms: float) -> ProfiledModel:
    kernels = [_kernel("embed", "Gather", "embed", 0.5)]
    for i in range(LAYERS):
        kernels.append(_kernel(f"attn{i}", "MatMul", f"layer.{i}.attn", layer_ms * (1 + i / 10)))
        kernels.append(_kernel(f"mlp{i}", "com.x::Fused", f"layer.{i}", layer_ms / 2, TracedBy.VALUES))
    kernels.append(_kernel("loop", "Loop", "", 0.25))
    kernels.append(_kernel("body", "Add", "embed", 0.125))
    kernels.append(_kernel("reorder", HOSTILE, None, 0.0625, TracedBy.NOTHING))
    total = sum(kernel.milliseconds for kernel in kernels)
    own: dict[str, float] = {"": 0.25, "embed": 0.625, "layer": 0.0}
    for i in range(LAYERS):
        own |= {f"layer.{i}": layer_ms / 2, f"layer.{i}.attn": layer_ms * (1 + i / 10)}
    modules = tuple(_module(path, ms, own, total) for path, ms in own.items())
    return ProfiledModel(
        f"/tmp/{label}", label, 12, 7, total + 1, total + 2, total, total - 0.0625, tuple(kernels), modules,
        tuple(_timeline(kernels)),
    )  # fmt: skip


def _module(path: str, self_ms: float, own: dict[str, float], total: float) -> ModuleTime:
    below = sum(ms for other, ms in own.items() if not path or other == path or other.startswith(path + "."))
    tags = {"": "/Net", "embed": "/Net/Embedding", "layer": "/Net"}
    tag = tags.get(path) or f"/Net/Layer.{path.split('.')[1]}" + ("/Attention" if path.endswith("attn") else "")
    owned = 2 if path == "embed" else int(self_ms > 0)
    return ModuleTime(path, tag, self_ms, below, owned, owned, below / total)


def _timeline(kernels: list[KernelTime]) -> list[Slice]:
    """Kernels in sequence with small gaps, the body inside the loop."""
    slices: list[Slice] = []
    now = 10.0
    for place, kernel in enumerate(kernels):
        length = 1000 * kernel.milliseconds
        if kernel.name == "body":
            slices.append(Slice(place, slices[-1].start_us + 5.0, length))
            continue
        length += 125 if kernel.name == "loop" else 0
        slices.append(Slice(place, now, length))
        now += length + 3.3
    return slices
