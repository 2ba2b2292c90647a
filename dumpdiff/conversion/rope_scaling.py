"""The scaling of RoPE's frequencies, in the spelling of config.json and of Megatron's arguments.

Sources: transformers modeling_rope_utils.py; megatron-core 0.16.1
models/common/embeddings/rotary_pos_embedding.py (``_apply_scaling`` knows Llama 3's form only, and
an interpolation factor divides positions, which is the linear scaling of transformers),
transformer/transformer_config.py (``MLATransformerConfig``: YaRN) and models/gpt/gpt_model.py (YaRN
of other models, by fields of the configuration).
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
#: The same without latent attention, and the default of transformers.
_CORE_YARN_FIELDS: Final = {
    "factor": ("yarn_rotary_scaling_factor", None),
    "original_max_position_embeddings": ("yarn_original_max_position_embeddings", None),
    "beta_fast": ("yarn_beta_fast", 32.0),
    "beta_slow": ("yarn_beta_slow", 1.0),
    "mscale": ("yarn_mscale", None),
    "mscale_all_dim": ("yarn_mscale_all_dim", None),
    "truncate": ("yarn_correction_range_round_to_int", True),
}


#: Megatron's argument of linear scaling, which is an integer on its command line.
_INTERPOLATION: Final = "rotary_seq_len_interpolation_factor"


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
        return {"rope_type": "yarn", **_read_fields(settings, _YARN_FIELDS)}
    if settings.get(_INTERPOLATION) is not None:
        return {"rope_type": "linear", "factor": float(settings[_INTERPOLATION])}
    if settings.get("position_embedding_type") == "yarn":
        numbers = _read_fields(settings, _CORE_YARN_FIELDS)
        return {"rope_type": "yarn", **numbers}
    return _read_config(settings)


def _read_fields(
    settings: Mapping[str, Any], fields: Mapping[str, tuple[str, Any]]
) -> dict[str, Any]:
    """Return the numbers in fields of Megatron's configuration, without those that are None."""
    values = {key: settings.get(name, default) for key, (name, default) in fields.items()}
    return {key: value for key, value in values.items() if value is not None}


def _read_config(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scaling in config.json; {} if there is none."""
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


def has_argument(scaling: Mapping[str, Any], *, has_mla: bool) -> bool:
    """Return whether Megatron's command line has a place for a scaling.

    It has none for YaRN without latent attention, which only the configuration of a model states.
    """
    if scaling.get("rope_type") == "yarn" and not has_mla:
        return False
    return build_megatron_scaling(scaling, has_mla=has_mla) is not None


def build_megatron_scaling(scaling: Mapping[str, Any], *, has_mla: bool) -> dict[str, Any] | None:
    """Return Megatron's arguments for a scaling; None if Megatron cannot compute it."""
    kind = scaling.get("rope_type")
    if kind is None:
        return {"rope_type": "rope"} if has_mla else {}
    if kind == "yarn":
        return _build_yarn(scaling, has_mla=has_mla)
    if has_mla:
        return None
    factor = scaling.get("factor")
    if kind == "linear" and factor is not None and factor == int(factor):
        return {_INTERPOLATION: int(factor)}
    has_constants = all(scaling.get(key) == value for key, value in _LLAMA3_CONSTANTS.items())
    if kind != "llama3" or not has_constants or factor is None:
        return None
    return {"use_rope_scaling": True, "rope_scaling_factor": factor}


def _build_yarn(scaling: Mapping[str, Any], *, has_mla: bool) -> dict[str, Any] | None:
    """Return the arguments of YaRN; None if it has numbers that Megatron does not have."""
    names = _YARN_FIELDS if has_mla else _CORE_YARN_FIELDS
    if not has_mla and not scaling.keys() - {"rope_type"} <= names.keys():
        return None
    fields = {name: scaling.get(key, default) for key, (name, default) in names.items()}
    kind = {"rope_type": "yarn"} if has_mla else {"position_embedding_type": "yarn"}
    return {**kind, **fields}
