"""How two trainings cut their token files, by their settings."""

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
    """How the target and the reference pack; what their settings do not tell is as :data:`DEFAULT` has it."""
    target, reference = (
        _packing(
            {outcome.setting: getattr(outcome, side).value for outcome in settings.rows},
            framework,
        )
        for side, framework in (
            ("target", settings.target.framework),
            ("reference", settings.reference.framework),
        )
    )
    return target, reference


def _packing(values: dict[str, Any], framework: str) -> Packing:
    told = {
        field: int(values[row])
        for field, row in _ROWS.items()
        if isinstance(values[row], int) and values[row] > 0
    }
    if isinstance(values["data_seed"], int):
        told["seed"] = values["data_seed"]  # which may be 0
    if (
        framework == "mindformers" and "samples" in told
    ):  # its datasets hold one epoch, and are repeated
        told["samples"] //= values["epochs"] if isinstance(values["epochs"], int) else 1
    shares = values["split"]
    split = DEFAULT_PACKING.split if not isinstance(shares, (list, tuple)) else ",".join(map(repr, shares))
    return Packing(
        **told, split=split, loader="mindformers" if framework == "mindformers" else "megatron"
    )
