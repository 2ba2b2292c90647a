"""Values that follow from several keys of torchtitan's TOML."""

from __future__ import annotations

from ..row_value import SettingsLookup, UnknownValueError
from .forms import require


def derive_betas(lookup: SettingsLookup) -> tuple[float | None, ...]:
    """Return both decay rates of Adam."""
    return lookup.get_number("optimizer.beta1"), lookup.get_number("optimizer.beta2")


def derive_global_batch(lookup: SettingsLookup) -> int:
    """Return the samples of one step; -1 means local batch x data parallel."""
    size = None
    if lookup.is_set("training.global_batch_size"):
        size = lookup.get_integer("training.global_batch_size")
    if size is None or size <= 0:
        raise UnknownValueError("global_batch_size is not set: the number of devices decides")
    return size


def derive_decay_steps(lookup: SettingsLookup) -> int:
    """Return the steps of the schedule: those of the training if none are set."""
    steps = lookup.get_integer("lr_scheduler.total_steps")
    if steps is None:
        steps = lookup.get_integer("training.steps")
    return require(steps, "training.steps")
