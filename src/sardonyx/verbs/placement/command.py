"""Show which nodes and modules of a model a device runs.

Example:
  sardonyx placement model.onnx webgpu
  sardonyx placement model.onnx cuda --fail-if fallback_nodes
  sardonyx placement model.onnx openvino --json | jq .away

Says which nodes fall back to the CPU, from the profile of the device. It was measured with the device's runtime: here
no runtime is loaded, and no weight is read. A node that computes a shape stays on the CPU on purpose and is not
counted. docs/placement.md lists the devices and says how their profiles are measured.

Exit: 0 done, 1 failed, 2 usage, 4 gate not met.
"""

from __future__ import annotations

from sardonyx.cli.options import DEPTH, FORCE, MODEL, PRINTING, RECORD, argument
from sardonyx.cli.verb import Verb
from sardonyx.reporting.placement import placement_document, placement_sentence

VERB = Verb(
    of=("placement",),
    options=(
        MODEL,
        argument("device", "DEVICE", "A device with a profile, or the file of a profile."),
        DEPTH, RECORD, FORCE, *PRINTING,
    ),
    record="placement",
    document=placement_document,
    sentence=placement_sentence,
)  # fmt: skip
