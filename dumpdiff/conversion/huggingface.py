"""Names of Hugging Face transformers, by model type: those of ``rules/families``."""

from __future__ import annotations

from dataclasses import replace

from ..model.errors import DumpError
from ..rulebook import PREDICTION_MODULES, ModelFamily
from .canonical import CanonicalCheckpoint
from .target_layout import Fusion, TargetLayout

_DEFAULT_TYPE = "llama"
_FRAMEWORK = "huggingface"
#: Fused module of a block -> its parts.
_FUSED = {
    "attention.qkv": ("qkv", ("q", "k", "v")),
    "mlp.gate_up_proj": ("gate_up_proj", ("gate_proj", "up_proj")),
}


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
        predictions={**predictions, "block": layer},
        first_prediction=n_layers,
    )
