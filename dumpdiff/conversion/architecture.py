"""Whether a model is one of those that are converted: refused here, it is not written wrongly.

A model with another norm, residual path or position embedding can have the same names as Llama. Its
converted weights would load and compute something else.
"""

from __future__ import annotations

import re

from ..model.errors import DumpError
from .canonical import CanonicalCheckpoint
from .huggingface import CLASSES

_LAYER_MODULE = re.compile(r"^layers\.(\d+)\.(.+)\.(?:weight|bias)$")
#: What each layer of a converted model has: one of the alternatives of every row.
_REQUIRED_MODULES: tuple[tuple[str, ...], ...] = (
    ("input_norm",),
    ("post_attention_norm",),
    ("attention.q", "attention.q_b"),
    ("attention.k", "attention.kv_b"),
    ("attention.v", "attention.kv_b"),
    ("attention.out",),
    ("mlp.down_proj", "mlp.experts.0.down_proj"),
)


def check_source(model: CanonicalCheckpoint) -> None:
    """Raise DumpError if the source is no model of a family that is converted."""
    model_type = model.settings.get("model_type")
    if isinstance(model_type, str) and model_type not in CLASSES:
        raise DumpError(
            f"model_type {model_type} in config.json is not converted; known are"
            f" {', '.join(sorted(CLASSES))}. Names (--rules FILE) are not enough: the rows of fused"
            " weights, the norms, the residual path and the position embedding must be those of a"
            " known family"
        )
    modules: dict[str, set[str]] = {}
    for path in model.parameters:
        match = _LAYER_MODULE.match(path)
        if match is not None:
            modules.setdefault(match[1], set()).add(match[2])
    for layer, layer_modules in modules.items():
        for alternatives in _REQUIRED_MODULES:
            if layer_modules.isdisjoint(alternatives):
                raise DumpError(
                    f"layer {layer} has no {' or '.join(alternatives)}: the layers of the families"
                    " that are converted have one"
                )


def check_target(model: CanonicalCheckpoint, model_type: str) -> None:
    """Raise DumpError if a class of transformers cannot compute what the source computes."""
    has_layer_norm = model.has_parameter("final_norm.bias")
    if has_layer_norm != (model_type == "gpt2"):
        kinds = ("LayerNorm", "RMSNorm") if has_layer_norm else ("RMSNorm", "LayerNorm")
        raise DumpError(f"the source has {kinds[0]}, and {model_type} has {kinds[1]}")
    if model.config.zero_centered_norms:
        raise DumpError(
            f"the source stores its norms minus one, and {model_type} does not add one: store the"
            " norms as they are first"
        )
