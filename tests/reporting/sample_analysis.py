"""A handmade Analysis: every field has a value that a renderer could get wrong."""

from __future__ import annotations

from msgspec.structs import replace

from sardonyx.records.analysis import (
    Alive,
    Analysis,
    AnalysisSource,
    AttentionCost,
    Crossover,
    Form,
    Formulas,
    Memory,
    Missing,
    ModuleCost,
    Overtaking,
    Peak,
    RegionRule,
    Timeline,
    Traffic,
    Work,
)
from sardonyx.records.inspection import Port
from sardonyx.records.run import Environment

LAYERS = 3


def sample_analysis() -> Analysis:
    """A small encoder in its three forms."""
    standard = sample_form()
    decomposed = replace(
        standard,
        name="decomposed",
        nodes=84,
        work=replace(standard.work, operations=45, views=21, bytes_written=2_600_000),
        traffic=Traffic(7_600_000, 4_560_000),
        attentions=tuple(
            AttentionCost(f"layer.{i}.attn", "nn.MultiheadAttention", {"scores": 1, "split-heads": 3, "softmax": 1})
            for i in range(LAYERS)
        ),
    )
    fused = replace(standard, name="fused", nodes=30, memory=replace(standard.memory, as_run=None))
    return Analysis(
        environment=Environment("0.1.0", "3.11.9", "Linux", 2, {"torch": "2.13.0"}),
        options={"dynamic": "auto", "seed": 0},
        sources=(AnalysisSource("file.py:build", "torch", "net.Encoder", (Port("x", "float32", ("batch", 16, 8)),)),),
        sizes={"batch": 2},
        forms=(standard, decomposed, fused),
        missing=(Missing("compiled", "nobody\nasked | for it"),),
        overtaking=(Overtaking("batch", 33, "standard", "decomposed"),),
        notes=("x=float32[2,16,8] generated as features",),
        seconds={"recording": 0.25},
    )


def sample_form() -> Form:
    """The encoder as written."""
    alive = tuple(Alive(size, f"layer.{size % 3}.mlp", f"aten.gelu_{size}") for size in range(90_000, 20_000, -9_000))
    peak = Peak(1_250_000, 17, "aten.gelu_1", "aten.gelu", "layer.1.mlp", 4_096, alive, 2)
    return Form(
        name="standard",
        nodes=None,
        work=Work(33, 9, 12_000_000, 25_500_000, 5_000_000, 2_500_000, 87_654),
        memory=Memory(
            350_616, 1_024, peak, replace(peak, bytes=1_500_000), Timeline(42, ((0, 10), (17, 1_250_000)), 17, "g", "m")
        ),
        traffic=Traffic(7_500_000, 5_000_000),
        regions=(
            RegionRule("attention", 3, 18, 6, 9_000_000, 2_400_000, 2_450_000, 1),
            RegionRule("elementwise", 2, 4, 2, 8_000, 100_000, 100_000, 0),
            RegionRule("alone", 11, 11, 1, 500, 0, 0, 0),
        ),
        attentions=tuple(
            AttentionCost(f"layer.{i}.attn", "nn.MultiheadAttention", {"attention": 1}) for i in range(LAYERS)
        ),
        formulas=Formulas("6000000*batch", "12750000*batch", "3750000*batch", "max(625000*batch, 4096)", _crossovers()),
        modules=(
            ModuleCost("", "Encoder", 3, 0, 500, 1_000, 54, 0, 1_100_000),
            *(each for i in range(LAYERS) for each in _layer(i)),
        ),
        notes=("fast paths of torch are off",),
    )


def _crossovers() -> tuple[Crossover, ...]:
    return (Crossover("batch", 12, "aten.gelu in layer.0.mlp", "aten.bmm in layer.0.attn"),)


def _layer(i: int) -> list[ModuleCost]:
    return [
        ModuleCost(f"layer.{i}.attn", "MultiheadAttention", 6, 3_000_000, 6_000_000, 1_500_000, 9_200, 0, 800_000),
        ModuleCost(f"layer.{i}.mlp", "Sequential", 4, 1_000_000, 2_499_833, 999_667, 20_000, 180_000, 1_250_000),
    ]
