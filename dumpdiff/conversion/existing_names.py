"""The names of an existing checkpoint as a target, such as one of a newly initialized model."""

from __future__ import annotations

from collections.abc import Iterable

from ..model.errors import DumpError
from ..weight_comparison.families import MINDFORMERS
from ..weight_comparison.groups import is_state
from ..weight_comparison.whole_model import WholeModel
from .canonical import FusionLayout
from .rows import OutputTensor
from .target_layout import Fusion, TargetLayout


def build_layout(example: WholeModel, qkv: FusionLayout, gate_up: FusionLayout) -> TargetLayout:
    """Return the layout of an example: its names, with q, k, v and gate, up fused as in it.

    Fused parts are laid out as given if the names are those of MindSpore Transformers, else
    concatenated.
    """
    names = {
        path: name
        for path, name in example.canonical.items()
        if not is_state(path, example.tensors[name])
    }
    modules = {path.split(".")[-2] for path in names if "." in path}
    if example.naming.family != MINDFORMERS:
        qkv = gate_up = "concatenated"
    fusions = []
    if "qkv" in modules:
        fusions.append(Fusion("qkv", ("q", "k", "v"), qkv))
    if "gate_up_proj" in modules:
        fusions.append(Fusion("gate_up_proj", ("gate_proj", "up_proj"), gate_up))
    return TargetLayout(
        example.checkpoint.path.name, "", {}, {}, fusions=tuple(fusions), exact=names
    )


def check_against_example(example: WholeModel, tensors: Iterable[OutputTensor]) -> None:
    """Raise DumpError unless the example's tensors are all written, in its shapes."""
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    for name in example.canonical.values():
        expected_shape = example.tensors[name].shape
        if name not in shapes:
            raise DumpError(f"{example.checkpoint.path}: {name} has no counterpart in the source")
        if shapes[name] != expected_shape:
            raise DumpError(
                f"{example.checkpoint.path}: {name} is {list(expected_shape)}, "
                f"but {list(shapes[name])} in the source"
            )
