"""The hyperparameters of a training script, from a small YAML or JSON file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from ..model.input_files import MAX_WRITTEN_BYTES, read_input_text
from .rule import HYPERPARAMETERS, HyperparameterValues
from .search import KnownSettings

_LARGEST_NUMBER = 1e30  #: of settings that have no bound of their own

#: Spelling of PyTorch, MindSpore, Megatron-LM or MindSpore Transformers -> name here.
_SPELLINGS = {
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "adam_beta1": "beta1",
    "beta1": "beta1",
    "adam_beta2": "beta2",
    "beta2": "beta2",
    "betas": "betas",
    "eps": "epsilon",
    "epsilon": "epsilon",
    "adam_eps": "epsilon",
    "weight_decay": "decay",
    "momentum": "momentum",
    "sgd_momentum": "momentum",
    "dampening": "dampening",
    "clip": "clip",
    "clip_grad": "clip",
    "max_norm": "clip",
    "max_grad_norm": "clip",
    "loss_scale": "loss_scale",
    "step": "step",
}


@dataclass(frozen=True)
class Settings:
    """What is known of a run in addition to its tensors."""

    values: HyperparameterValues = field(default_factory=dict)
    rates: tuple[float, ...] = ()  #: one learning rate for all steps, or one for each
    first_step: int | None = None  #: the number of the first update, counted from 1

    def override_with(self, other: Settings) -> Settings:
        """Return the same settings, except for those that ``other`` has."""
        return Settings(
            {**self.values, **other.values},
            other.rates or self.rates,
            self.first_step if other.first_step is None else other.first_step,
        )

    def to_known(self, n_steps: int) -> KnownSettings:
        """Return the settings of ``n_steps`` updates.

        Raises DumpError for too few learning rates.
        """
        if len(self.rates) > 1 and len(self.rates) < n_steps:
            raise DumpError(
                f"learning_rate: {len(self.rates)} values for {n_steps} steps; give one for each, "
                "or one"
            )
        rates = self.rates[:n_steps] if len(self.rates) > 1 else self.rates * n_steps
        return KnownSettings(self.values, rates or None)


def read_settings(path: str | Path) -> Settings:
    """Return the settings in a file. Raises DumpError if it cannot be read or has other content."""
    import yaml

    try:
        content = yaml.safe_load(read_input_text(path, MAX_WRITTEN_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise DumpError(f"{path}: cannot be read ({error})") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DumpError(f"{path}: neither YAML nor JSON: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise DumpError(
            f"{path}: expected lines such as 'learning_rate: 1e-3', found something else"
        )
    return parse_settings(content, str(path))


def parse_settings(content: Mapping[Any, Any], origin: str = "settings") -> Settings:
    """Return the settings in a mapping. Raises DumpError for an unknown name or a wrong value.

    ``origin`` is used in error messages.
    """
    entries: dict[str, Any] = {}
    for spelling, value in content.items():
        name = _SPELLINGS.get(str(spelling))
        if name is None:
            raise DumpError(
                f"{origin}: {spelling} is no setting; those are {', '.join(_SPELLINGS)}"
            )
        entries[name] = value
    values = {}
    for name in HYPERPARAMETERS:
        if name in entries:
            values[name] = _parse_number(entries[name], name, origin)
    if "betas" in entries:
        values["beta1"], values["beta2"] = _parse_betas(entries["betas"], origin)
    if "loss_scale" in entries:
        scale = _parse_number(entries["loss_scale"], "loss_scale", origin)
        if scale <= 0:
            raise DumpError(f"{origin}: loss_scale: expected a number above 0, found {scale:g}")
        values["factor"] = 1 / scale
    rates = entries.get("learning_rate", ())
    if not isinstance(rates, (list, tuple)):
        rates = [rates]
    first_step = entries.get("step")
    if first_step is not None and (type(first_step) is not int or first_step < 1):
        raise DumpError(
            f"{origin}: step: expected the number of the first update, counted from 1, "
            f"found {first_step!r}"
        )
    parsed_rates = tuple(_parse_number(rate, "learning_rate", origin) for rate in rates)
    return Settings(values, parsed_rates, first_step)


def _parse_betas(betas: Any, origin: str) -> tuple[float, float]:
    if not isinstance(betas, (list, tuple)) or len(betas) != 2:
        raise DumpError(f"{origin}: betas: expected two numbers, found {betas!r}")
    return _parse_number(betas[0], "betas", origin), _parse_number(betas[1], "betas", origin)


def _parse_number(value: Any, name: str, origin: str) -> float:
    """Return a finite number that is not negative; YAML reads 1e-3 (no dot) as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    highest = _LARGEST_NUMBER
    if name in HYPERPARAMETERS:
        highest = max(HYPERPARAMETERS[name].highest, 1.0)
    if isinstance(value, bool) or not 0 <= number <= highest:
        raise DumpError(
            f"{origin}: {name}: expected a number from 0 to {highest:g}, found {value!r}"
        )
    return number
