"""Wrong results of earlier versions are refused in exact arithmetic, apart from those that are equal over the reals."""

from __future__ import annotations

from sardonyx.verification.exact_check import Claim, decide
from wrong_results import ARCHIVE, WholeModels, pairs, reached

# What exact arithmetic does not see: running the nodes, or trials of the whole model, refuse these.
NOT_NUMBERS = {"clip_0_6", "clip_6_0", "clip_8_8", "maxneg0", "negzero_string"}  # infinities, signs of zeros, texts
NO_DEFINITION = {"ln_f32_sq_int_div_f32", "rms_int_trunc", "pw_int32", "raise_bern_15_rms", "pa_causal_leftpad_inf"}
ROUNDING = {"f16_add_LOrows", "f16_add_m1e4rows", "f16_wheremask_LO_allfalse", "at_add_add_LO"}  # and overflow
KERNELS = {"pa2layer_inf", "pa_maskrow_LO", "pai_LO", "slice_back_intmax", "slice_back_intmax_int32"}
TWO_EMPTY = {"reshape_zero2"}  # dimensions, where right rewrites may differ too


OPEN = NOT_NUMBERS | NO_DEFINITION | ROUNDING | KERNELS | TWO_EMPTY


def test_wrong_results_of_earlier_versions_are_refused() -> None:
    cases = [(name, before, after) for name, before, after, _ in pairs(ARCHIVE) if name not in OPEN]
    assert len(cases) == 43
    for name, before, after in cases:
        excerpts = (WholeModels(reached(before, branch), reached(after, branch)) for branch in (True, False))
        assert any(decide(excerpt).claim is Claim.UNEQUAL for excerpt in excerpts), name
