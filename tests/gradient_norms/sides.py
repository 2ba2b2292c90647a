"""Real gradients changed by one effect at a time, and logs written by tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.gradient_norms import NormComparison, Norms, Row, read_norms
from dumpdiff.gradient_norms.norms import build_norms
from dumpdiff.model.errors import DumpError
from dumpdiff.rulebook import load_rules

RULES = load_rules()
SAMPLES = Path(__file__).parents[1] / "samples"
MEGATRON = SAMPLES / "norms" / "megatron_0.12_local_norm.log"
MINDFORMERS = SAMPLES / "logs" / "mindformers_1.8_resumed.log"


def scale_norms(norms: Norms, factor: Callable[[str], float]) -> Norms:
    """Multiply every norm by a function of its canonical name."""
    scaled_values = [
        value * factor(RULES.resolve_parameter(name))
        for value, name in zip(norms.raw_values, norms.names, strict=True)
    ]
    return replace(norms, raw_values=np.array(scaled_values))


def select_parameters(norms: Norms, indices: list[int]) -> Norms:
    """Keep some parameters only."""
    return replace(
        norms,
        names=tuple(norms.names[index] for index in indices),
        raw_values=norms.raw_values[indices],
        raw_rounding=norms.raw_rounding[indices],
        sizes=norms.sizes[indices],
        vector_flags=norms.vector_flags[indices],
    )


def get_depth(path: str) -> int:
    """Return 0 to 3 for a layer, -1 for the embedding, 9 for parameters after the layers."""
    layer = re.search(r"layers\.(\d+)", path)
    if layer:
        return int(layer[1])
    return -1 if path.startswith("embedding") else 9


def drop_precision(norms: Norms) -> Norms:
    """Return norms of an unknown precision."""
    return replace(norms, precision="")


def drop_names(
    norms: Norms,
    order: Sequence[int] | None = None,
    *,
    digits: int = 9,
    squared: bool | None = False,
) -> Norms:
    """Return the same norms without names, reordered, rounded to some digits, possibly squared."""
    indices = list(range(len(norms)) if order is None else order)
    values = norms.values[indices] ** (2 if squared else 1)
    printed_values = np.array([float(f"{value:.{digits - 1}e}") for value in values])
    rounding = 0.5 * 10.0 ** (np.floor(np.log10(printed_values)) - digits + 1)
    return build_norms(
        "list.txt",
        "a list",
        (),
        printed_values,
        raw_rounding=rounding,
        squared=squared,
        squared_reason="the test specifies it",
    )


def add_noise(norms: Norms, size: float) -> Norms:
    """Multiply every norm by a random factor near 1."""
    random = np.random.default_rng(1)
    return scale_norms(norms, lambda path: 1 + size * random.normal())


def fuse_parameters(norms: Norms, named: bool) -> Norms:
    """Fuse queries, keys and values into one parameter, and gate and up projections."""
    fused_modules = {
        "q": "qkv",
        "k": "qkv",
        "v": "qkv",
        "gate_proj": "gate_up_proj",
        "up_proj": "gate_up_proj",
    }
    values_by_path: dict[str, list[float]] = {}
    for name, value in zip(norms.names, norms.values, strict=True):
        *scope, module, leaf = RULES.resolve_parameter(name).split(".")
        path = ".".join([*scope, fused_modules.get(module, module), leaf])
        values_by_path.setdefault(path, []).append(float(value))
    values = np.array([np.linalg.norm(parts) for parts in values_by_path.values()])
    names = tuple(values_by_path) if named else ()
    return build_norms("fused", "a list", names, values, squared=False)


def order_decayed_first(norms: Norms) -> list[int]:
    """Return the order of Megatron-LM's optimizer."""
    return sorted(range(len(norms)), key=lambda index: int(norms.vector_flags[index]))


def order_by_depth(norms: Norms) -> list[int]:
    """Return the order of the model."""
    return sorted(
        range(len(norms)), key=lambda index: get_depth(RULES.resolve_parameter(norms.names[index]))
    )


def count_wrong_pairs(comparison: NormComparison, norms: Norms, order: Sequence[int]) -> int:
    """Count rows whose path is not that of the parameter at their position in the list."""
    paths = {}
    for position, index in enumerate(order):
        paths[f"#{position + 1}"] = RULES.resolve_parameter(norms.names[index])
    return sum(paths[row.target] != row.path for row in comparison.rows)


def find_row(comparison: NormComparison, path: str) -> Row:
    return next(row for row in comparison.rows if row.path == path)


def write_text(tmp_path: Path, content: str, name: str = "norms.log") -> Path:
    (tmp_path / name).write_text(content)
    return tmp_path / name


def read_error(path: Path, step: int | None = None) -> str:
    """Return the message, of one line, with which a path is rejected."""
    with pytest.raises(DumpError) as error:
        read_norms(path, step)
    assert "\n" not in str(error.value)
    return str(error.value)
