"""The network of an entry: linear layers, the expression, a linear layer and a loss."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
from entries import ENTRIES, INPUTS, Entry

WIDE = 3.0  #: deviation of the numbers of a wide net
_FEATURES = 3

_PYTORCH = """\
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, n_features):
        super().__init__()
{weights}
{linears}
{layers}
        if n_features:
            self.last = nn.Linear(n_features, {features})

    def forward(self, inputs, i, m, labels):
{names}
{statements}
        out = {expression}
        if out.numel() == 1:
            return out
        return F.mse_loss(self.last(out.reshape(out.shape[0], -1)), labels[: out.shape[0]])


class Model(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.block = Net(n_features)

    def forward(self, inputs, i, m, labels):
        return self.block(inputs, i, m, labels)
"""
_MINDSPORE = """\
import mindspore as ms
from mindspore import mint, nn, ops
from mindspore import Parameter


class Net(nn.Cell):
    def __init__(self, n_features):
        super().__init__()
{weights}
{linears}
{layers}
        self.is_loss = n_features == 0
        if n_features:
            self.last = nn.Dense(n_features, {features})

    def construct(self, inputs, i, m, labels):
{names}
{statements}
        out = {expression}
        if self.is_loss:
            return out
        return ops.mse_loss(self.last(out.reshape(out.shape[0], -1)), labels[: out.shape[0]])


class Model(nn.Cell):
    def __init__(self, n_features):
        super().__init__()
        self.block = Net(n_features)

    def construct(self, inputs, i, m, labels):
        return self.block(inputs, i, m, labels)
"""
_TEMPLATES = {"pytorch": _PYTORCH, "mindspore": _MINDSPORE}
_LINEARS = {"pytorch": "nn.Linear", "mindspore": "nn.Dense"}
_WEIGHTS = {
    "pytorch": "self.{name} = nn.Parameter(torch.zeros({shape}))",
    "mindspore": "self.{name} = Parameter(ops.zeros({shape}, ms.float32), name='{name}')",
}


def get_form(entry: Entry, framework: str, form: int) -> str:
    return getattr(entry, framework)[form]


def write_net(folder: Path, name: str, framework: str, form: int) -> Path:
    """Write the module of a network; a compiler of graphs needs its source."""
    entry = ENTRIES[name]
    layers: list[str] = []

    def name_layer(match: re.Match[str]) -> str:
        layers.append(match.group(1))
        return f"self.layer{len(layers) - 1}"

    text = re.sub(r"\{([^}]*)\}", name_layer, get_form(entry, framework, form))
    statements, expression = re.fullmatch(r"(?:(.*)[;\n])?\s*(.*)", text, re.DOTALL).groups()
    lines = [line for line in (statements or "").splitlines() if line.strip()]
    variables = [x for x in "xyz" if any(re.search(rf"\b{x}\b", f) for f in _list_forms(entry))]
    width = INPUTS[entry.input][-1]
    source = _TEMPLATES[framework].format(
        features=_FEATURES,
        weights=_indent(
            _WEIGHTS[framework].format(name=weight, shape=shape)
            for weight, shape in entry.weights.items()
        ),
        linears=_indent(
            f"self.linear_{x} = {_LINEARS[framework]}({width}, {width})" for x in variables
        ),
        layers=_indent(f"self.layer{i} = {layer}" for i, layer in enumerate(layers)),
        names=_indent(
            [f"{x} = self.linear_{x}(inputs)" for x in variables]
            + [f"{weight} = self.{weight}" for weight in entry.weights]
        ),
        statements=_indent(line.strip("; ") if line[0] != " " else line for line in lines),
        expression=expression,
    )
    path = folder / f"{framework}_{form}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def _list_forms(entry: Entry) -> tuple[str, ...]:
    return (*entry.pytorch, *entry.mindspore)


def _indent(lines) -> str:
    return "\n".join(f"        {line}" for line in lines)


def import_net(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where a compiler of graphs looks for its names
    spec.loader.exec_module(module)
    return module


def draw_batch(name: str) -> dict[str, np.ndarray]:
    """Return the inputs of the network of an entry."""
    shape = INPUTS[ENTRIES[name].input]
    random = np.random.default_rng(sum(map(ord, name)))
    return {
        "inputs": random.standard_normal(shape).astype(np.float32),
        "i": random.integers(0, shape[-1], shape[:-1]).astype(np.int32),
        "m": random.random(shape) < 0.4,
        "labels": random.standard_normal((64, _FEATURES)).astype(np.float32),
    }


def draw_weights(
    name: str, shapes: Mapping[str, tuple[int, ...]], factor: float
) -> list[np.ndarray]:
    """Return a number for every parameter, in the order of the network."""
    random = np.random.default_rng(sum(map(ord, name)) + 1)
    weights = []
    for parameter, shape in shapes.items():
        values = random.standard_normal(shape)
        values = 0.5 + 0.3 * values if len(shape) < 2 else values / np.sqrt(np.prod(shape[1:]))
        if "linear_" in parameter:
            values = factor * (values if len(shape) > 1 else values - 0.5)
        weights.append(values.astype(np.float32))
    return weights
