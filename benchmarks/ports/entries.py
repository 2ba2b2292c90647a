"""The table of the benchmark: ports to MindSpore, and their originals in PyTorch.

Each YAML file beside this one is a family: a mapping from the names of its models to entries. What
builds a model is an expression, evaluated in the module that ``from`` names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

HERE = Path(__file__).resolve().parent
MINDSPORE, PYNATIVE, PYTORCH = "mindspore", "mindspore_pynative", "pytorch"
_HELD_OUT_EVERY = 3
N_EXAMPLES, LENGTH, N_WORDS, N_CLASSES = 2, 12, 60, 5

Batch = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Entry:
    name: str
    mindspore: tuple[str, str]  #: module, expression
    pytorch: tuple[str, str]
    batch: str  #: a function of BATCHES
    size: int  #: of the images
    loss: str  #: how the loss is computed; see record.py
    names: Mapping[str, str]  #: parts of MindSpore's parameter names -> those of PyTorch's
    is_held_out: bool  #: never compared while dumpdiff is developed

    def build(self, framework: str) -> Any:
        module, expression = self.pytorch if framework == PYTORCH else self.mindspore
        return eval(expression, {**vars(importlib.import_module(module))})

    def draw_batch(self) -> Batch:
        return BATCHES[self.batch](np.random.default_rng(11), self)


def draw_images(rng: np.random.Generator, entry: Entry) -> Batch:
    images = rng.standard_normal((N_EXAMPLES, 3, entry.size, entry.size), dtype=np.float32)
    return {"images": images, "labels": rng.integers(0, N_CLASSES, N_EXAMPLES, dtype=np.int32)}


def draw_text(rng: np.random.Generator, entry: Entry) -> Batch:
    shape = (N_EXAMPLES, LENGTH)
    tokens, labels = rng.integers(3, N_WORDS, (2, *shape), dtype=np.int32)
    return {"input_ids": tokens, "labels": labels}


BATCHES: Mapping[str, Callable[[np.random.Generator, Entry], Batch]] = {
    "images": draw_images,
    "text": draw_text,
}


def read_entries() -> dict[str, Entry]:
    """Return all entries by name; of each family, sorted by name, every third is held out."""
    entries = {}
    for file in sorted(HERE.glob("*.yaml")):
        rows = yaml.safe_load(file.read_text())
        for number, name in enumerate(sorted(rows)):
            is_held_out = number % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
            entries[name] = _make_entry(name, rows[name], is_held_out)
    return entries


def _make_entry(name: str, row: Mapping[str, Any], is_held_out: bool) -> Entry:
    port, original = row["mindspore"], row["pytorch"]
    return Entry(
        name,
        (port["from"], port["build"]),
        (original["from"], original["build"]),
        row["batch"],
        row.get("size", 0),
        row["loss"],
        row.get("names", {}),
        is_held_out,
    )
