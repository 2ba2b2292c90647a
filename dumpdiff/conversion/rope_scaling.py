"""The scaling of RoPE's frequencies, in the spelling of config.json and of Megatron's arguments.

Sources: transformers modeling_rope_utils.py; megatron-core 0.16.1
models/common/embeddings/rotary_pos_embedding.py (``_apply_scaling`` knows Llama 3's form only) and
transformer/transformer_config.py (``MLATransformerConfig``: YaRN).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: The constants that Megatron's scaling has built in, with their names in config.json.
_LLAMA3_CONSTANTS: Final = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
#: Number of YaRN in config.json -> field of Megatron's latent attention, and its default there.
_YARN_FIELDS: Final = {
    "factor": ("rotary_scaling_factor", 40),
    "original_max_position_embeddings": ("original_max_position_embeddings", 4096),
    "beta_fast": ("beta_fast", 32),
    "beta_slow": ("beta_slow", 1),
    "mscale": ("mscale", 1.0),
    "mscale_all_dim": ("mscale_all_dim", 0.0),
}


def read_rope_scaling(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scaling in settings of either framework, as in config.json; {} if there is none.

    The key ``rope_type`` names it: llama3, yarn, linear, dynamic, longrope.
    """
    if settings.get("use_rope_scaling") is True:
        factor = settings.get("rope_scaling_factor", 8.0)
        return {"rope_type": "llama3", "factor": factor, **_LLAMA3_CONSTANTS}
    if settings.get("multi_latent_attention") is True:
        if settings.get("rope_type", "yarn") != "yarn":
            return {}
        values = {key: settings.get(name, default) for key, (name, default) in _YARN_FIELDS.items()}
        return {"rope_type": "yarn", **values}
    for name in ("rope_scaling", "rope_parameters"):  # the second since transformers 5
        scaling = settings.get(name)
        if isinstance(scaling, Mapping):
            kind = scaling.get("rope_type", scaling.get("type"))
            if kind not in (None, "default"):
                numbers = {
                    key: value
                    for key, value in scaling.items()
                    if key not in ("type", "rope_type", "rope_theta")
                }
                return {"rope_type": kind, **numbers}
    return {}


def build_megatron_scaling(scaling: Mapping[str, Any], *, has_mla: bool) -> dict[str, Any] | None:
    """Return Megatron's arguments for a scaling; None if Megatron cannot compute it."""
    kind = scaling.get("rope_type")
    if has_mla:
        if kind is None:
            return {"rope_type": "rope"}
        if kind != "yarn":
            return None
        fields = {name: scaling.get(key, default) for key, (name, default) in _YARN_FIELDS.items()}
        return {"rope_type": "yarn", **fields}
    if kind is None:
        return {}
    has_constants = all(scaling.get(key) == value for key, value in _LLAMA3_CONSTANTS.items())
    if kind != "llama3" or not has_constants or "factor" not in scaling:
        return None
    return {"use_rope_scaling": True, "rope_scaling_factor": scaling["factor"]}
