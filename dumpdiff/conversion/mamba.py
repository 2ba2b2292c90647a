"""Mixers of Mamba 2: the parts of their weights, how ranks share them, and their numbers.

The input projection is [z; x; B; C; dt] and the convolution [x; B; C], in transformers and in
Megatron-core. A tensor-parallel rank has a share of each part. Sources: megatron-core 0.16.1
ssm/{mamba_mixer,mamba_block}.py, models/mamba/mamba_layer_specs.py; transformers
models/mamba2/{modeling,configuration}_mamba2.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..model.errors import DumpError
from ..weight_comparison.mamba_shards import compute_part_sizes
from .rows import Rows

#: Weight of a mixer -> its parts.
PARTS = {
    "in_proj": ("in_proj_z", "in_proj_x", "in_proj_b", "in_proj_c", "in_proj_dt"),
    "conv1d": ("conv1d_x", "conv1d_b", "conv1d_c"),
}
#: Parameter of a part -> its name in a distributed checkpoint of Megatron-core.
DISTRIBUTED_NAMES = {
    f"mixer.{weight}_{part}.{leaf}": f"mixer.{weight}.{leaf}.{key}"
    for weight, leaves in (("in_proj", ("weight",)), ("conv1d", ("weight", "bias")))
    for leaf in leaves
    for part, key in (("z", "z"), ("x", "x"), ("b", "B"), ("c", "C"), ("dt", "dt"))
}
#: What a layer has.
REQUIRED_MODULES = (
    "norm",
    "mixer.norm",
    "mixer.out_proj",
    *(f"mixer.{part}" for parts in PARTS.values() for part in parts),
)
OUTPUT = ".mixer.out_proj.weight"  #: end of the canonical name of the row-parallel projection
#: Fact -> its name in config.json, and in Megatron's arguments; '' where a framework has none.
SPELLINGS = {
    "mixer_heads": ("num_heads", "mamba_num_heads"),
    "mixer_head_size": ("head_dim", "mamba_head_dim"),
    "mixer_groups": ("n_groups", "mamba_num_groups"),
    "mixer_state": ("state_size", "mamba_state_dim"),
    "expansion": ("expand", ""),
    "kernel": ("conv_kernel", ""),
}
#: Settings of config.json about the first values of a new model, and about speed.
EFFECTLESS_SETTINGS = frozenset(
    {
        "time_step_rank", "time_step_min", "time_step_max", "time_step_floor", "chunk_size",
        "rescale_prenorm_residual", "layer_types",
    }
)  # fmt: skip
_MIXER = re.compile(r"^layers\.\d+\.mixer\.")
#: Of Megatron-core's mixers: their arguments have neither.
_KERNEL, _GATED_NORM_EPSILON = 4, 1e-5
_SPEC = ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]
#: Of a time step; JSON has no infinity, and transformers 5 writes a mapping.
_NO_LIMITS = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])


def is_mixer(path: str) -> bool:
    """Return whether a canonical parameter belongs to a mixer."""
    return _MIXER.match(path) is not None


def has_mixers(paths: Mapping[str, Rows]) -> bool:
    """Return whether a model has mixers."""
    return any(map(is_mixer, paths))


def split_weight(
    path: str, prefix: str, module: str, get_shape: Callable[[str], tuple[int, ...] | None]
) -> tuple[Sequence[str], Sequence[int]]:
    """Return the names and the row counts of the parts of an input projection or convolution.

    ``get_shape`` returns the shape of another parameter by canonical name. Raises DumpError if the
    parameters next to it do not give the sizes.
    """
    sizes = compute_part_sizes(f"{prefix}{module}.weight", get_shape)
    if sizes is None:
        raise DumpError(
            f"{path}: the sizes of its parts are unknown, because out_proj or A_log is missing or"
            " does not fit"
        )
    return PARTS[module], sizes


def find_split_axis(path: str) -> int:
    """Return the axis of a mixer's parameter that tensor parallelism splits."""
    return 1 if path.endswith(OUTPUT) else 0


def check_mixers(parameters: Mapping[str, Rows]) -> None:
    """Raise DumpError for mixers that Megatron-core does not have, and for layers without one."""
    layers = {path.split(".")[1] for path in parameters if path.startswith("layers.")}
    mixer_layers = {path.split(".")[1] for path in parameters if is_mixer(path)}
    if layers != mixer_layers:
        raise DumpError("a model with layers of Mamba and of attention is not converted")
    for path, rows in parameters.items():
        if path.endswith((".mixer.in_proj_x.bias", ".mixer.out_proj.bias")):
            raise DumpError(f"{path}: Megatron-core's mixers have no biases of projections")
        if path.endswith(".mixer.conv1d_x.weight"):
            if rows.shape[1] != _KERNEL:
                raise DumpError(
                    f"{path}: the convolutions of Megatron-core's mixers have {_KERNEL} elements,"
                    f" and this one has {rows.shape[1]}"
                )
            if path.removesuffix("weight") + "bias" not in parameters:
                raise DumpError(f"{path}: Megatron-core's mixers have a bias of the convolution")


def check_tensor_ranks(facts: Mapping[str, Any], n_ranks: int) -> None:
    """Raise DumpError if the groups and heads of mixers do not divide over ranks."""
    groups = facts.get("mixer_groups")
    if n_ranks > 1 and not groups:
        raise DumpError("--tp: the number of groups is unknown: config.json must give n_groups")
    for name, count in (("groups", groups), ("heads", facts["mixer_heads"])):
        if count and count % n_ranks:
            raise DumpError(f"--tp {n_ranks}: {count} {name} of the mixers do not divide by it")


def measure_facts(parameters: Mapping[str, Rows], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers that the parameters of the first mixer show."""
    prefix = "layers.0.mixer."
    n_heads = parameters[prefix + "A_log"].shape[0]
    n_hidden, inner = parameters[prefix + "out_proj.weight"].shape
    facts: dict[str, Any] = {
        "mixer_heads": n_heads,
        "mixer_head_size": inner // n_heads,
        "kernel": parameters[prefix + "conv1d_x.weight"].shape[1],
        "expansion": inner // n_hidden if inner % n_hidden == 0 else inner / n_hidden,
    }
    groups = stated.get("mixer_groups")
    if groups:
        facts["mixer_state"] = parameters[prefix + "in_proj_b.weight"].shape[0] // groups
    return facts


def build_arguments(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return Megatron's arguments of a model of mixers alone.

    Megatron requires a number of attention heads, although none of its layers has attention.
    """
    arguments: dict[str, Any] = {
        "hybrid_override_pattern": "M" * facts["layers"],
        "hybrid_attention_ratio": 0.0,
        "hybrid_mlp_ratio": 0.0,
        "spec": _SPEC,
        "position_embedding_type": "none",
        "num_attention_heads": facts["mixer_heads"],
        "transformer_impl": "transformer_engine",
    }
    if "residual_in_fp32" in settings:
        arguments["fp32_residual_connection"] = bool(settings["residual_in_fp32"])
    return arguments


def build_stage_arguments(stage_layers: Sequence[int], n_virtual: int) -> dict[str, Any]:
    """Return Megatron's arguments of the layers of each stage; () for as many in each.

    Raises DumpError for stages that Megatron-core's MambaStack cannot have.
    """
    if n_virtual > 1:
        raise DumpError("--vpp: Megatron-core has no virtual stages of Mamba")
    if not stage_layers:
        return {}
    if len(set(stage_layers[1:-1])) > 1:
        raise DumpError(
            "--stage-layers: in Megatron-core only the first and the last stage of Mamba may have"
            " other numbers of layers"
        )
    return {
        "decoder_first_pipeline_num_layers": stage_layers[0],
        "decoder_last_pipeline_num_layers": stage_layers[-1],
        "pipeline_model_parallel_layout": None,
    }


def is_idle(name: str, value: Any) -> bool:
    """Return whether a setting of config.json is what Megatron-core computes anyway."""
    if name == "time_step_limit":
        return value in _NO_LIMITS
    return name == "residual_in_fp32" or name in EFFECTLESS_SETTINGS


def list_lost_settings(facts: Mapping[str, Any]) -> list[str]:
    """Return the numbers that Megatron-core has as constants, if they are others here."""
    epsilon = facts.get("norm_epsilon")
    if epsilon in (None, _GATED_NORM_EPSILON):
        return []
    return [f"the epsilon {epsilon} of the norm in a mixer (it is {_GATED_NORM_EPSILON})"]
