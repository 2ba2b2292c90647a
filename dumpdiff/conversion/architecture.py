"""Whether a model is one of those that are converted: refused here, it is not written wrongly.

A model with another norm, residual path or position embedding can have the same names as Llama. Its
converted weights would load and compute something else.
"""

from __future__ import annotations

import re

from ..checkpoints import Checkpoint
from ..model.errors import DumpError
from ..rulebook import ModelFamily, Rules
from ..weight_comparison.families import find_model_family, read_naming
from . import mamba
from .canonical import CanonicalCheckpoint

#: Why a family is refused whose rules do not say it.
_NO_REASON = "its checkpoints are compared only"
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


#: The weights at the end of attention and MLP: both have biases in Megatron, or none.
_OUTPUT_MODULE = re.compile(r"\.(attention\.out|mlp\.(?:experts\.\d+\.)?down_proj)\.weight$")
#: The same of a layer of Mamba.
_REQUIRED_MIXER_MODULES = tuple((module,) for module in mamba.REQUIRED_MODULES)


def check_family(checkpoint: Checkpoint, rules: Rules, framework: str) -> None:
    """Raise DumpError if the model of a checkpoint is not converted to a framework."""
    settings = checkpoint.settings
    names = [entry.name for entry in checkpoint.entries]
    family = find_model_family(settings, rules)
    if family is None:
        family = read_naming(names, settings, checkpoint.format, rules).model
    model_type = settings.get("model_type")
    if isinstance(model_type, str) and family is None:
        raise DumpError(
            f"model_type {model_type} in config.json is not converted; known are"
            f" {', '.join(rules.families.list_model_types(framework))}. A file for --rules with"
            " the section 'families' adds it (docs/rules.md): its model_types, norm, names"
            " (scopes), the rows of fused weights, and in converts_to the frameworks that compute"
            " the same residual path, position embedding and activation"
        )
    if family is not None and framework not in family.targets:
        name = model_type or family.name
        reason = family.reasons.get(framework, _NO_REASON)
        raise DumpError(f"{name} is not converted to {framework}: {reason}")


def check_layers(model: CanonicalCheckpoint) -> None:
    """Raise DumpError if a layer lacks what every layer of a converted family has."""
    modules: dict[str, set[str]] = {}
    for path in model.parameters:
        match = _LAYER_MODULE.match(path)
        if match is not None:
            modules.setdefault(match[1], set()).add(match[2])
    required_modules = _REQUIRED_MODULES
    if model.has_mixers:
        mamba.check_mixers(model.parameters)
        required_modules = _REQUIRED_MIXER_MODULES
    for layer, layer_modules in modules.items():
        for alternatives in required_modules:
            if layer_modules.isdisjoint(alternatives):
                raise DumpError(
                    f"layer {layer} has no {' or '.join(alternatives)}: the layers of the families"
                    " that are converted have one"
                )


def check_biases(model: CanonicalCheckpoint) -> None:
    """Raise DumpError for biases that Megatron's arguments cannot say.

    ``add_bias_linear`` is about attention and MLP, ``add_qkv_bias`` about q, k and v alone. Latent
    attention has biases in its last projection only.
    """
    if model.has_mla and model.has_parameter(".attention.kv_a.bias"):
        raise DumpError("Megatron's latent attention has no biases of its down projections")
    biased: set[str] = set()
    unbiased: set[str] = set()
    for path in model.parameters:
        match = _OUTPUT_MODULE.search(path)
        if match is None:
            continue
        has_bias = path.removesuffix("weight") + "bias" in model.parameters
        (biased if has_bias else unbiased).add(match[1])
    if biased and unbiased:
        raise DumpError(
            f"{', '.join(sorted(biased))} has a bias and {', '.join(sorted(unbiased))} has none:"
            " Megatron has both or none; give --bias for biases of zeros"
        )


def check_target(model: CanonicalCheckpoint, family: ModelFamily, model_type: str) -> None:
    """Raise DumpError if a class of transformers cannot compute what the source computes."""
    source_family = find_model_family(model.settings, model.rules)
    if source_family is not None and source_family != family:
        raise DumpError(
            f"--model-type {model_type}: config.json of the source says"
            f" {model.settings['model_type']}, which is another architecture"
        )
    norm = "LayerNorm" if model.has_parameter("final_norm.bias") else "RMSNorm"
    if family.norm != norm:
        raise DumpError(f"the source has {norm}, and {model_type} has {family.norm}")
    if model.config.zero_centered_norms and not family.norms_minus_one:
        raise DumpError(
            f"the source stores its norms minus one, and {model_type} does not add one: store the"
            " norms as they are first"
        )
