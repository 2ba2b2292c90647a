"""The numbers that a training script was given, from a small YAML or JSON file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.errors import DumpError
from .rule import HYPERPARAMETERS, HyperparameterValues
from .search import KnownSettings

_LARGEST = 1 << 20  #: bytes

#: As PyTorch, MindSpore, Megatron-LM and MindSpore Transformers spell them -> our name.
_SPELLINGS = {
    "lr": "learning_rate", "learning_rate": "learning_rate", "adam_beta1": "beta1", "beta1": "beta1",
    "adam_beta2": "beta2", "beta2": "beta2", "betas": "betas", "eps": "epsilon", "epsilon": "epsilon",
    "adam_eps": "epsilon", "weight_decay": "decay", "momentum": "momentum", "sgd_momentum": "momentum",
    "dampening": "dampening", "clip": "clip", "clip_grad": "clip", "max_norm": "clip", "max_grad_norm": "clip",
    "loss_scale": "loss_scale", "step": "step",
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What is known of a run beside its tensors."""

    values: HyperparameterValues = field(default_factory=dict)
    rates: tuple[float, ...] = ()  #: one learning rate for all steps, or one for each
    first_step: int | None = None  #: the number of the first update, counted from 1

    def override_with(self, other: Settings) -> Settings:
        """The same, except for what ``other`` says."""
        return Settings(
            {**self.values, **other.values},
            other.rates or self.rates,
            self.first_step if other.first_step is None else other.first_step,
        )

    def to_known(self, steps: int) -> KnownSettings:
        """For so many updates. Raises DumpError where there are fewer learning rates."""
        if len(self.rates) > 1 and len(self.rates) < steps:
            raise DumpError(
                f"learning_rate: {len(self.rates)} values for {steps} steps; give one for each, or one"
            )
        rates = self.rates[:steps] if len(self.rates) > 1 else self.rates * steps
        return KnownSettings(self.values, rates or None)


def read_settings(path: str | Path) -> Settings:
    """Settings from a file. Raises DumpError if it cannot be read or holds anything else."""
    import yaml

    try:
        if Path(path).stat().st_size > _LARGEST:
            raise DumpError(f"{path}: too large for a file of settings")
        said = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DumpError(f"{path}: cannot be read ({error})") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DumpError(f"{path}: neither YAML nor JSON: {' '.join(str(error).split())}") from error
    if not isinstance(said, dict):
        raise DumpError(
            f"{path}: expected lines such as 'learning_rate: 1e-3', found something else"
        )
    return parse_settings(said, str(path))


def parse_settings(said: Mapping[Any, Any], where: str = "settings") -> Settings:
    """Settings from names and values; ``where`` is only for what errors say. Raises DumpError for what is unknown."""
    found: dict[str, Any] = {}
    for name, value in said.items():
        ours = _SPELLINGS.get(str(name))
        if ours is None:
            raise DumpError(f"{where}: {name} is no setting; those are {', '.join(_SPELLINGS)}")
        found[ours] = value
    numbers = {name: _number(found[name], name, where) for name in HYPERPARAMETERS if name in found}
    if "betas" in found:
        pair = found["betas"]
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise DumpError(f"{where}: betas: expected two numbers, found {pair!r}")
        numbers |= {
            "beta1": _number(pair[0], "betas", where),
            "beta2": _number(pair[1], "betas", where),
        }
    if "loss_scale" in found:
        scale = _number(found["loss_scale"], "loss_scale", where)
        if scale <= 0:
            raise DumpError(f"{where}: loss_scale: expected a number above 0, found {scale:g}")
        numbers["factor"] = 1 / scale
    rates = found.get("learning_rate", ())
    rates = rates if isinstance(rates, (list, tuple)) else [rates]
    step = found.get("step")
    if step is not None and (type(step) is not int or step < 1):
        raise DumpError(
            f"{where}: step: expected the number of the first update, counted from 1, found {step!r}"
        )
    return Settings(numbers, tuple(_number(rate, "learning_rate", where) for rate in rates), step)


def _number(value: Any, name: str, where: str) -> float:
    """A finite number, not negative; YAML reads 1e-3 (no dot) as text."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    limit = HYPERPARAMETERS[name].highest if name in HYPERPARAMETERS else 1e30
    if isinstance(value, bool) or not 0 <= number <= max(limit, 1.0):
        raise DumpError(
            f"{where}: {name}: expected a number from 0 to {max(limit, 1.0):g}, found {value!r}"
        )
    return number
