"""Names of Hugging Face transformers, by model type: those of ``rules/families``."""

from __future__ import annotations

import re
from dataclasses import replace

from ..model.errors import DumpError
from ..rulebook import PREDICTION_MODULES, ModelFamily
from . import mamba
from .canonical import CanonicalCheckpoint
from .target_layout import Fusion, TargetLayout

_DEFAULT_TYPE = "llama"
_FRAMEWORK = "huggingface"
_GATE_AND_UP = ("gate_proj", "up_proj")
#: Fused module of a block -> its parts.
_FUSED = {
    "attention.qkv": ("qkv", ("q", "k", "v")),
    "mlp.gate_up_proj": ("gate_up_proj", _GATE_AND_UP),
    **{f"mixer.{fused}": (fused, parts) for fused, parts in mamba.PARTS.items()},
}
#: A weight or bias of all experts of a layer, in a family's names: there is no number.
_STACKED = re.compile(r"^(.*\.experts)\.(\w+)\.(weight|bias)$")


def detect_model_type(model: CanonicalCheckpoint) -> str:
    """Return the ``model_type`` of a model: from its settings, else by its parameters."""
    families = model.rules.families
    model_type = model.settings.get("model_type")
    if isinstance(model_type, str) and families.find(model_type) is not None:
        return model_type
    family = families.recognize_parameters(model.parameters.keys())
    return _DEFAULT_TYPE if family is None else next(iter(family.classes))


def find_family(model: CanonicalCheckpoint, model_type: str) -> ModelFamily:
    """Return the family of a model type. Raises DumpError for one that is not converted."""
    family = model.rules.families.find(model_type)
    if family is None or _FRAMEWORK not in family.targets:
        known_types = ", ".join(model.rules.families.list_model_types(_FRAMEWORK))
        raise DumpError(f"--model-type {model_type}: expected one of {known_types}")
    return family


def add_prediction_copies(model: CanonicalCheckpoint) -> CanonicalCheckpoint:
    """Return a model whose prediction layers have copies of embedding and head, as files have."""
    parameters, sources = dict(model.parameters), dict(model.sources)
    for depth in range(model.n_predictions):
        for module in ("embedding", "head"):
            original = f"{module}.weight"
            if original not in parameters:
                original = "embedding.weight"
            path = f"mtp.{depth}.{module}.weight"
            parameters[path], sources[path] = parameters[original], sources[original]
    return replace(model, parameters=parameters, sources=sources)


def build_layout(family: ModelFamily, model_type: str, n_layers: int) -> TargetLayout:
    """Return the layout of a family's files; prediction layers come after the ``n_layers``."""
    fusions = []
    for module, (fused, parts) in _FUSED.items():
        if module in family.block:
            fusions.append(Fusion(fused, parts, family.rows.get(fused, "concatenated")))
    stacked = {}
    for path, name in family.block.items():
        match = _STACKED.match(path)
        if match is not None:
            stacked[f"{match[1]}.{{}}.{match[2]}.{match[3]}"] = name
    if any(".gate_up_proj." in path for path in stacked):
        arrangement = family.rows.get("gate_up_proj", "concatenated")
        fusions.append(Fusion("gate_up_proj", _GATE_AND_UP, arrangement, r".*\.experts\.\d+"))
    layer = family.layer.replace("{layer}", "{}")
    predictions = {module: f"{layer}.{name}" for module, name in PREDICTION_MODULES.items()}
    return TargetLayout(
        f"Hugging Face {model_type}",
        f"{layer}.",
        {
            module.replace("{expert}", "{}"): name.replace("{expert}", "{}")
            for module, name in family.block.items()
        },
        family.model,
        fusions=tuple(fusions),
        transposed=family.transposed,
        stacked=stacked,
        stack_transposed=any(".experts." in module for module in family.transposed),
        predictions={**predictions, "block": layer},
        first_prediction=n_layers,
    )
