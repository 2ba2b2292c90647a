"""The table of the benchmark: ports to MindSpore, and their originals in PyTorch.

Each YAML file beside this one is a family of models. What builds a model is an expression,
evaluated in a module where NAME is the name of the model.
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
N_EXAMPLES, N_CLASSES = 2, 5

Batch = dict[str, Any]  #: arrays, and options of a model


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

    def import_module(self, framework: str) -> Any:
        module, _ = self.pytorch if framework == PYTORCH else self.mindspore
        return importlib.import_module(module)

    def build(self, framework: str) -> Any:
        _, expression = self.pytorch if framework == PYTORCH else self.mindspore
        return eval(expression, {**vars(self.import_module(framework)), "NAME": self.name})

    def draw_batch(self) -> Batch:
        return BATCHES[self.batch](np.random.default_rng(11), self)


def draw_images(rng: np.random.Generator, entry: Entry) -> Batch:
    images = rng.standard_normal((N_EXAMPLES, 3, entry.size, entry.size), dtype=np.float32)
    return {"images": images, "labels": rng.integers(0, N_CLASSES, N_EXAMPLES, dtype=np.int32)}


def draw_architecture(rng: np.random.Generator, entry: Entry) -> Batch:
    import transformers_models

    return {
        key: value.astype(np.int32) if getattr(value, "dtype", None) == np.int64 else value
        for key, value in transformers_models.draw_batch(entry.name).items()
    }


BATCHES: Mapping[str, Callable[[np.random.Generator, Entry], Batch]] = {
    "images": draw_images,
    "architecture": draw_architecture,
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
