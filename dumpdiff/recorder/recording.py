"""What is recorded of one step of one rank, and the folder that it is written to.

The folder is ``stepN/rankN`` with ``manifest.json`` (docs/manifest.schema.json), ``sketches.npy``
and, where whole tensors were requested, ``tensors/*.npy``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ..model.arrays import AnyArray
from ..model.output_files import open_output_file, write_output_file
from ..model.sketches import BUCKETS, FLOOR, LENGTH, N_STATISTICS, SAMPLES
from ..model.sketches import VERSION as SKETCH_VERSION
from ..model.trace import BACKWARD
from ..readers.manifest import RECOGNITION_KEY, VERSION
from .call_sites import NOWHERE, CallSite
from .measurements import Measurements

#: Kind of a record of a gradient, as msprobe calls it.
GRADIENT_KIND = "parameters_grad"
_STATISTICS = ("max", "min", "mean", "norm")
_SKETCHES = "sketches.npy"


@dataclass
class Recording:
    """The tensors and calls of one step, as they will be written."""

    root: Path  #: folder of the whole recording
    framework: str
    step: int
    rank: int
    details: dict[str, Any]  #: further keys of the manifest
    calls: list[dict[str, Any]] = field(default_factory=list)
    tensors: list[dict[str, Any]] = field(default_factory=list)
    measurements: Measurements = field(default_factory=Measurements)
    #: lines of the user -> number of the stack
    stacks: dict[tuple[str, ...], int] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of this step and rank."""
        return self.root / f"step{self.step}" / f"rank{self.rank}"

    def add_tensor(self, dtype: str, shape: tuple[int, ...]) -> int:
        """Add a tensor and return its number."""
        self.tensors.append({"dtype": dtype, "shape": shape})
        return len(self.tensors) - 1

    def add_call(self, *, site: CallSite = NOWHERE, **call: Any) -> int:
        """Add a call with the keys of the manifest, without empty ones, and return its number."""
        if site.stack:
            call["source"] = site.source
            call["stack"] = self.stacks.setdefault(site.stack, len(self.stacks))
        self.calls.append(
            {key: value for key, value in call.items() if value not in ("", (), None)}
        )
        return len(self.calls) - 1

    def add_gradient_call(self, name: str, number: int) -> None:
        """Add a call for the gradient of a parameter that no recorded operator wrote."""
        self.add_call(
            name=f"{name}.{GRADIENT_KIND}", kind=GRADIENT_KIND, phase=BACKWARD, outputs=[number]
        )

    def write_array(self, number: int, array: AnyArray) -> None:
        """Write a whole tensor. Raises DumpError if that fails."""
        file = f"tensors/{number}.npy"
        (self.folder / "tensors").mkdir(parents=True, exist_ok=True)
        with open_output_file(self.folder / file) as stream:
            np.save(stream, array, allow_pickle=False)
        self.tensors[number]["file"] = file

    def write(self, *, is_complete: bool) -> None:
        """Write sketches and manifest; the manifest last, so that all it names is there.

        ``is_complete`` is false if the step ended with an error. Raises DumpError if writing fails.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_sketches()
        document = {
            RECOGNITION_KEY: VERSION,
            "framework": self.framework,
            "step": self.step,
            "rank": self.rank,
            "complete": is_complete,
            **self.details,
            "resolution": FLOOR,
            "sketches": _SKETCHES,
            "sketch": {"version": SKETCH_VERSION, "buckets": BUCKETS, "samples": SAMPLES},
            "tensors": self.tensors,
            "calls": self.calls,
            "stacks": list(self.stacks),
        }
        write_output_file(self.folder / "manifest.json", orjson.dumps(document))

    def _write_sketches(self) -> None:
        """Write the sketches, and set the statistics of all tensors."""
        numbers = self.measurements.finish()
        sketches: list[AnyArray] = []
        for number, values in numbers.items():
            entry = self.tensors[number]
            statistics = values[:N_STATISTICS].tolist()
            entry["nonfinite"] = not all(map(math.isfinite, statistics[:2]))
            for name, value in zip(_STATISTICS, statistics, strict=True):
                if math.isfinite(value):
                    entry[name] = value
            if len(values) > N_STATISTICS:
                entry["sketch"] = len(sketches)
                sketches.append(values[N_STATISTICS:])
        with np.errstate(over="ignore"):  # beyond float32 an element of a sketch is Inf
            table = np.array(sketches).reshape(len(sketches), LENGTH).astype(np.float32)
        with open_output_file(self.folder / _SKETCHES) as stream:
            np.save(stream, table, allow_pickle=False)
