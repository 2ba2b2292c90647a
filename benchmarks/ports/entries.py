"""The table of the benchmark: ports to MindSpore, and their originals in PyTorch.

Each YAML file beside this one is a family of models. An expression, evaluated in a module, builds
a model.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    mindspore: Sequence[str]  #: module, expression
    pytorch: Sequence[str]
    batch: str  #: a function of BATCHES
    loss: str  #: how the loss is computed: a name in record.py and port_losses.py
    is_held_out: bool  #: never compared while dumpdiff is developed
    size: int = 0  #: of the images
    names: Mapping[str, str] = field(default_factory=dict)  #: patterns of MindSpore's names
    #: of parameters -> parts of PyTorch's
    differs: Sequence[str] = ()  #: names of causes that say how the port differs, if it does

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
        family = yaml.safe_load(file.read_text())
        for number, (name, row) in enumerate(sorted(family["models"].items())):
            is_held_out = number % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
            entries[name] = Entry(name, **{**family["defaults"], **row}, is_held_out=is_held_out)
    return entries


def list_faults(name: str) -> list[str]:
    """Return the faults in the order in which they are tried on a model; each model has its own."""
    from model_faults import FAULTS

    faults = list(FAULTS)
    first = zlib.crc32(name.encode()) % len(faults)
    return faults[first:] + faults[:first]
