"""Real gradients, edited by one effect at a time, and logs written on the spot."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.gradient_norms import NormComparison, Norms, Row, read_norms
from dumpdiff.gradient_norms.side import build_norms
from dumpdiff.model.errors import DumpError
from dumpdiff.rulebook import load_rules

RULES = load_rules()
SAMPLES = Path(__file__).parents[1] / "samples"
MEGATRON = SAMPLES / "norms" / "megatron_0.12_local_norm.log"
MINDFORMERS = SAMPLES / "logs" / "mindformers_1.8_resumed.log"


def times(norms: Norms, factor: Callable[[str], float]) -> Norms:
    """Every norm times what a function of its canonical name gives."""
    changed = [
        value * factor(RULES.resolve_parameter(name))
        for value, name in zip(norms.raw_values, norms.names, strict=True)
    ]
    return replace(norms, given=np.array(changed))


def depth(path: str) -> int:
    """0 to 3 of a layer, -1 of the embedding, 9 of what comes after the layers."""
    layer = re.search(r"layers\.(\d+)", path)
    return int(layer[1]) if layer else -1 if path.startswith("embedding") else 9


def unknown(norms: Norms) -> Norms:
    """Of a precision that nobody knows."""
    return replace(norms, precision="")


def bare(
    norms: Norms,
    order: Sequence[int] | None = None,
    *,
    digits: int = 9,
    squared: bool | None = False,
) -> Norms:
    """The same numbers without names, in another order, printed with some digits, as squares or roots."""
    rows = list(range(len(norms)) if order is None else order)
    values = norms.values[rows] ** (2 if squared else 1)
    printed = np.array([float(f"{value:.{digits - 1}e}") for value in values])
    rounding = 0.5 * 10.0 ** (np.floor(np.log10(printed)) - digits + 1)
    return build_norms(
        "list.txt",
        "a list",
        (),
        printed,
        rounding=rounding,
        squared=squared,
        because="the test says so",
    )


def noisy(norms: Norms, size: float) -> Norms:
    random = np.random.default_rng(1)
    return times(norms, lambda path: 1 + size * random.normal())


def fused(norms: Norms, named: bool) -> Norms:
    """With queries, keys and values in one parameter, and gate and up."""
    wholes = {
        "q": "qkv",
        "k": "qkv",
        "v": "qkv",
        "gate_proj": "gate_up_proj",
        "up_proj": "gate_up_proj",
    }
    groups: dict[str, list[float]] = {}
    for name, value in zip(norms.names, norms.values, strict=True):
        *front, module, leaf = RULES.resolve_parameter(name).split(".")
        groups.setdefault(".".join([*front, wholes.get(module, module), leaf]), []).append(
            float(value)
        )
    values = np.array([np.linalg.norm(parts) for parts in groups.values()])
    return build_norms("fused", "a list", tuple(groups) if named else (), values, squared=False)


def decayed_first(norms: Norms) -> list[int]:
    """The order of Megatron-LM's optimizer."""
    return sorted(range(len(norms)), key=lambda row: int(norms.vector_flags[row]))


def wrongly_paired(comparison: NormComparison, norms: Norms, order: Sequence[int]) -> int:
    """How many rows have another parameter than their number in the list is."""
    truth = {f"#{place + 1}": RULES.resolve_parameter(norms.names[row]) for place, row in enumerate(order)}
    return sum(truth[row.target] != row.path for row in comparison.rows)


def row(comparison: NormComparison, path: str) -> Row:
    return next(found for found in comparison.rows if found.path == path)


def text(tmp_path: Path, said: str, name: str = "said.log") -> Path:
    (tmp_path / name).write_text(said)
    return tmp_path / name


def refused(path: Path, step: int | None = None) -> str:
    with pytest.raises(DumpError) as error:
        read_norms(path, step)
    assert "\n" not in str(error.value)
    return str(error.value)
