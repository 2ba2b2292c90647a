"""The cases: pairs of trainings with a known fault, or with none.

A fault is one of ``fixtures/training_faults.py``. A third of the cases is held out: nobody looks at
them while tuning; their totals alone are reported. There are two such parts: the decision was
corrected once after the first one was counted, the second one was written after that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from training_faults import ALL_FAULTS, HELD_OUT_FAULTS

MINDSPORE, PYTORCH = "mindspore", "pytorch"

#: Steps of a case whose fault acts late, and of the others.
_LATE_STEPS, _STEPS = 24, 4
_LATE_FAULTS = ("schedule", "late-batch", "skipped", "late-sampler")

#: The parts of the cases.
TUNED, HELD_OUT, SECOND_HELD_OUT = "tuned", "held out", "second held out"


@dataclass(frozen=True)
class Case:
    """A pair of trainings, and what a triage of it may say."""

    name: str
    target: tuple[str, str]  #: framework and fault
    reference: tuple[str, str]
    #: Places of the fault, in the order in which they act; () without a fault.
    places: tuple[str, ...]
    #: Causes that are right, too: a place that the fault acts through, the settings that have it.
    also_right: tuple[str, ...] = ()
    part: str = TUNED
    size: str = "tests"  #: of the model: a key of ``training.SIZES``

    @property
    def steps(self) -> int:
        """Number of recorded steps."""
        return _LATE_STEPS if self.target[1] in _LATE_FAULTS else _STEPS


#: Fault -> the places of its cause, and other right answers.
_ANSWERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "none": ((), ()),
    "setting": (("forward",), ("settings",)),
    "weights": (("weights",), ()),
    "batch": (("data",), ()),
    "label-shift": (("data",), ()),
    "forward": (("forward",), ()),
    "backward": (("backward",), ()),
    "optimizer": (("optimizer",), ("settings",)),
    "schedule": (("schedule",), ()),
    "precision": (("backward",), ("precision",)),
    "sample-order": (("data",), ()),
    "wrong-token": (("data",), ()),
    "labels-are-tokens": (("data",), ()),
    "weight-row": (("weights",), ()),
    "heads": (("weights",), ()),
    "transposed": (("weights",), ()),
    "epsilon": (("forward",), ()),
    "small-epsilon": (("forward",), ()),
    "mask": (("forward",), ()),
    "gelu": (("forward",), ()),
    "dropout": (("forward",), ()),
    "half-probabilities": (("forward",), ("precision",)),
    "gradient-factor": (("backward",), ()),
    "gradient-third": (("backward",), ()),
    "decay-vectors": (("optimizer",), ()),
    "adam-epsilon": (("optimizer",), ("settings",)),
    "beta": (("optimizer",), ("settings",)),
    "warmup": (("schedule",), ()),
    "late-batch": (("long run",), ("data",)),
    "skipped": (("long run",), ("optimizer",)),
    "weights+optimizer": (("weights", "optimizer"), ("settings",)),
    "batch+schedule": (("data", "schedule"), ()),
    "other-attention": ((), ()),
    "bfloat16-other-attention": ((), ()),
    "bfloat16-epsilon": (("forward",), ()),
    "bfloat16-heads": (("weights",), ()),
    "repeated-sample": (("data",), ()),
    "unshifted-labels": (("data",), ()),
    "exchanged-layers": (("weights",), ()),
    "scaled-norm": (("weights",), ()),
    "rope-layout": (("forward",), ()),
    "residual": (("forward",), ()),
    "halved-gradients": (("backward",), ()),
    "decay": (("optimizer",), ("settings",)),
    "first-beta": (("optimizer",), ("settings",)),
    "linear-schedule": (("schedule",), ()),
    "late-sampler": (("long run",), ("data",)),
    "head-order+warmup": (("weights", "schedule"), ()),
    "bfloat16-mask": (("forward",), ()),
    "bfloat16-fused": ((), ()),
}
#: Every third kind of place has one: chosen before anything was tuned.
_HELD_OUT = frozenset(
    {
        "wrong-token", "heads", "small-epsilon", "gelu", "half-probabilities", "gradient-factor",
        "beta", "late-batch", "batch+schedule", "other-attention", "bfloat16-heads",
    }
)  # fmt: skip
_BFLOAT16 = "bfloat16"


def list_cases() -> list[Case]:
    """Return all cases: faults of either framework, then PyTorch against PyTorch in bfloat16."""
    cases = []
    for fault, (places, also_right) in _ANSWERS.items():
        target, reference = (MINDSPORE, "none"), (PYTORCH, "none")
        side = ALL_FAULTS[fault].side
        if fault.startswith(_BFLOAT16):
            target, reference = (PYTORCH, fault), (PYTORCH, _BFLOAT16)
        elif side == PYTORCH:
            reference = (PYTORCH, fault)
        elif side == MINDSPORE:
            target = (MINDSPORE, fault)
        part, size = TUNED, "tests"
        if fault in _HELD_OUT:
            part = HELD_OUT
        elif fault in HELD_OUT_FAULTS:
            part, size = SECOND_HELD_OUT, "other"
        cases.append(Case(fault, target, reference, places, also_right, part, size))
    return cases
