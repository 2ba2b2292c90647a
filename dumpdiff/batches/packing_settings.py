"""How two trainings cut their token files into samples, derived from their settings."""

from __future__ import annotations

from typing import Any

from ..run_settings import SettingsComparison
from .first_step import DEFAULT_PACKING, Packing

#: Field of a packing -> row of the settings table.
_ROWS = {
    "sequence_length": "seq_length",
    "global_batch": "global_batch",
    "micro_batch": "micro_batch",
    "data_parallel": "data_parallel",
    "seed": "data_seed",
    "samples": "train_samples",
}


def derive_packings(settings: SettingsComparison) -> tuple[Packing, Packing]:
    """Return the packing of the target and of the reference.

    Fields that the settings do not contain are those of :data:`DEFAULT_PACKING`.
    """
    target_values = {row.setting: row.target.value for row in settings.rows}
    reference_values = {row.setting: row.reference.value for row in settings.rows}
    target = _derive_packing(target_values, settings.target.framework)
    reference = _derive_packing(reference_values, settings.reference.framework)
    return target, reference


def _derive_packing(values: dict[str, Any], framework: str) -> Packing:
    fields: dict[str, int] = {}
    for field, row in _ROWS.items():
        value = values[row]
        if isinstance(value, int) and (value > 0 or field == "seed"):
            fields[field] = int(value)
    split = DEFAULT_PACKING.split
    if isinstance(values["split"], (list, tuple)):
        split = ",".join(map(repr, values["split"]))
    if framework != "mindformers":
        return Packing(**fields, split=split, loader="megatron")
    if "samples" in fields and isinstance(values["epochs"], int):
        fields["samples"] //= values["epochs"]  # its datasets hold one epoch and are repeated
    return Packing(**fields, split=split, loader="mindformers")
