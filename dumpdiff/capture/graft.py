"""Live isolation: put a value of the reference in the place of one module's value of the target.

After it, the target computes with what the reference had, so that the next dump shows whether the
rest agrees. The first fault no longer hides the second one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ..comparison import Comparison
from ..graph import Flow
from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.finding import Finding
from ..model.recorded_shapes import have_one_order, load_readable_tensor

Place = Literal["input", "output"]

#: File of an output, see :attr:`Graft.file`.
_OUTPUT_FILE = re.compile(r"(?P<path>.+)\.output\.\d+\.\d+\.npy")
#: Record of a module: prefix, path of attributes, class, phase, number of the call.
_MODULE = re.compile(r"(?:Module|Cell)\.(?P<path>.+)\.[^.]+\.forward\.(?P<call>\d+)(?:#\d+)?")


@dataclass(frozen=True, eq=False)
class Graft:
    """A value of the reference for one slot of one call of a module of the target."""

    module: str  #: path of attributes in the model that is dumped: model.layers.1.mlp
    call: int  #: number of the call in the step
    place: Place
    slot: int  #: position among the inputs or outputs
    values: AnyArray
    framework: str  #: of the target

    @property
    def file(self) -> str:
        """The name of the file, from which the code in the training script knows the place."""
        return f"{self.module}.{self.place}.{self.slot}.{self.call}.npy"


def list_grafted_modules(folder: Path) -> frozenset[str]:
    """Return the modules of which a folder holds an output; empty if there is no such folder."""
    if not folder.is_dir():
        return frozenset()
    matches = [_OUTPUT_FILE.fullmatch(file.name) for file in folder.iterdir()]
    return frozenset(match["path"] for match in matches if match)


def plan_graft(
    comparison: Comparison,
    finding: Finding,
    place: Place,
    grafted_modules: Collection[str] = (),
) -> Graft:
    """Return what to load into the smallest module around a finding of which both values exist.

    Raises DumpError if the target has no modules at run time, if the finding is in one of
    ``grafted_modules``, or if the reference's whole tensor is missing.
    """
    target, reference = comparison.alignment.target, comparison.alignment.reference
    if target.trace.source.format != "msprobe":
        raise DumpError(
            f"{target.trace.source.path}: has no module calls; a graft needs a target in PyTorch "
            "or PyNative mode that msprobe dumped at level mix or L0"
        )
    modules = _list_enclosing_modules(target, finding)
    if not modules:
        raise DumpError(f"finding {finding.rank} ({finding.title}) is in no recorded module call")
    for module in modules:
        match = _MODULE.fullmatch(str(target.trace.ops["name"].iat[module]))
        if match is not None and match["path"] in grafted_modules:
            raise DumpError(
                f"finding {finding.rank} ({finding.title}) is in {match['path']}, whose output "
                "is replaced already, and which still differs inside; take another finding"
            )
    unrecorded_names = []
    for module in modules:
        match = _MODULE.fullmatch(str(target.trace.ops["name"].iat[module]))
        row = _find_slot(target, module, place)
        if match is None or row < 0:
            continue
        partner = comparison.alignment.partners.get(int(target.tensor_class[row]), -1)
        shape = tuple(target.tensors["shape"].iat[row] or ())
        values = load_whole_tensor(reference, partner, shape) if partner >= 0 else None
        if values is None:
            unrecorded_names.append(str(target.trace.ops["name"].iat[module]))
            continue
        slot = int(str(target.tensors["slot"].iat[row]).split(".")[1])
        framework = target.trace.source.framework
        return Graft(match["path"], int(match["call"]), place, slot, values, framework)
    raise DumpError(
        f"finding {finding.rank}: the reference's whole tensor of the {place} of "
        f"{' or '.join(unrecorded_names) or 'its modules'} is not recorded; dump it with task "
        "tensor, on the side of the reference"
    )


def _list_enclosing_modules(flow: Flow, finding: Finding) -> list[int]:
    """Return the module calls around all ops of a finding, the innermost first.

    If there are none, because the ops are in several modules, those around the last op, whose
    result differs.
    """
    names = flow.trace.ops["name"].tolist()
    ops = [names.index(name) for name in finding.target_ops if name in names]
    forward_ops = flow.trace.ops["forward"].tolist()
    paths = []
    for op in ops:
        forward_op = forward_ops[op] if forward_ops[op] >= 0 else op
        is_module = flow.trace.ops["level"].iat[forward_op] == "module"
        own = [forward_op] if is_module else []
        paths.append([*own, *flow.iterate_enclosing_calls(forward_op)])
    if not paths:
        return []
    modules = [module for module in paths[0] if all(module in path for path in paths[1:])]
    return modules or paths[-1]


def _find_slot(flow: Flow, module: int, place: Place) -> int:
    """Return the row of the first floating tensor that a module call reads or writes, else -1."""
    rows: list[int] = flow.get_tensor_ids(module).tolist()
    for row in rows:
        is_slot = str(flow.tensors["slot"].iat[row]).startswith(f"{place}.")
        is_numbered = re.fullmatch(r"\w+\.\d+", str(flow.tensors["slot"].iat[row])) is not None
        is_floating = "float" in str(flow.tensors["dtype"].iat[row])
        if is_slot and is_numbered and is_floating and flow.tensor_class[row] >= 0:
            return row
    return -1


def load_whole_tensor(flow: Flow, value: int, shape: tuple[int, ...]) -> AnyArray | None:
    """Return a whole tensor of a value in a shape, None if none is recorded that has it.

    A value is recorded in several orders, such as before and after a transposition. One of the
    shape itself is taken, of several the latest, as a module returns it; else one in which axes of
    the shape are joined or split.
    """
    rows = np.flatnonzero(flow.has_whole_tensor & (flow.tensor_class == value)).tolist()
    shapes = {row: tuple(flow.tensors["shape"].iat[row] or ()) for row in rows}
    fitting_rows = [row for row in rows if have_one_order(shapes[row], shape)]
    for row in sorted(fitting_rows, key=lambda row: (shapes[row] != shape, -row)):
        array = load_readable_tensor(flow.trace, row)
        if array is not None and array.shape == shapes[row]:
            return np.ascontiguousarray(array.reshape(shape))
    return None
