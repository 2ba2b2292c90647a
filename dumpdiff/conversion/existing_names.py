"""The names of a checkpoint that is there, such as one of a hand-written model just initialised, as a target."""

from __future__ import annotations

from collections.abc import Iterable

from ..model.errors import DumpError
from ..weight_comparison.families import MINDFORMERS
from ..weight_comparison.groups import is_state
from ..weight_comparison.whole_model import WholeModel
from .canonical import FusionLayout
from .rows import OutputTensor
from .target_layout import Fusion, TargetLayout


def build_layout(side: WholeModel, qkv: FusionLayout, gate_up: FusionLayout) -> TargetLayout:
    """Every canonical parameter under the name that it has there; q, k, v and gate, up fused where they are there.

    The layouts of what is fused are as given, if the names are those of MindSpore Transformers, else one after the
    other.
    """
    known = {
        path: name
        for path, name in side.canonical.items()
        if not is_state(path, side.tensors[name])
    }
    modules = {path.split(".")[-2] for path in known if "." in path}
    turns = (qkv, gate_up) if side.family == MINDFORMERS else ("concatenated", "concatenated")
    fusions = []
    if "qkv" in modules:
        fusions.append(Fusion("qkv", ("q", "k", "v"), turns[0]))
    if "gate_up_proj" in modules:
        fusions.append(Fusion("gate_up_proj", ("gate_proj", "up_proj"), turns[1]))
    return TargetLayout(f"{side.checkpoint.path.name}", "", {}, {}, fusions=tuple(fusions), exact=known)


def check_against_example(side: WholeModel, tensors: Iterable[OutputTensor]) -> None:
    """Raise DumpError unless the tensors are all that the example has, in its shapes."""
    made = {tensor.name: tensor.shape for tensor in tensors}
    for name in side.canonical.values():
        shape = side.tensors[name].shape
        if name not in made:
            raise DumpError(
                f"{side.checkpoint.path}: {name} is there, and nothing of the source becomes it"
            )
        if made[name] != shape:
            raise DumpError(
                f"{side.checkpoint.path}: {name} is {list(shape)} there, the source's {list(made[name])}"
            )
