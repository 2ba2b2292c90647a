"""Values that follow from several keys of DeepSpeed's JSON."""

from __future__ import annotations

from ..row_value import SettingsLookup
from .forms import require


def derive_compute_dtype(lookup: SettingsLookup) -> str:
    """Return the dtype of the section bf16 or fp16 that is enabled."""
    if lookup.get_boolean("bf16.enabled"):
        return "bfloat16"
    return "float16" if lookup.get_boolean("fp16.enabled") else "float32"


def derive_loss_scale(lookup: SettingsLookup) -> float | None:
    """Return the constant scale of the loss, None if it is dynamic, which DeepSpeed writes as 0."""
    return lookup.get_number("fp16.loss_scale") or None


def derive_initial_loss_scale(lookup: SettingsLookup) -> int:
    """Return the scale with which a dynamic one begins: a power of 2 is set."""
    power = require(lookup.get_integer("fp16.initial_scale_power"), "initial_scale_power")
    return int(2.0 ** min(power, 100))
