"""The configuration of a model, from its settings and shapes, in each framework's spelling."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..model.errors import DumpError
from ..rulebook import ModelFamily
from ..weight_comparison.families import find_model_family
from . import attention_windows, expert_settings, mamba
from .canonical import CanonicalCheckpoint
from .parallel_ranks import ParallelSizes, build_size_arguments
from .rope_scaling import build_megatron_scaling, has_argument, read_rope_scaling


class _Spelling(NamedTuple):
    """The names of a fact; '' where a framework has none."""

    transformers: str  #: in config.json, unless the model's family has another (``config``)
    megatron: str  #: in Megatron's arguments


_SPELLINGS: Mapping[str, _Spelling] = {
    "layers": _Spelling("num_hidden_layers", "num_layers"),
    "hidden": _Spelling("hidden_size", "hidden_size"),
    "heads": _Spelling("num_attention_heads", "num_attention_heads"),
    "groups": _Spelling("num_key_value_heads", "num_query_groups"),
    "head_size": _Spelling("head_dim", "kv_channels"),
    "ffn": _Spelling("intermediate_size", "ffn_hidden_size"),
    "vocabulary": _Spelling("vocab_size", "vocab_size"),
    "positions": _Spelling("max_position_embeddings", "max_position_embeddings"),
    "norm_epsilon": _Spelling("rms_norm_eps", "norm_epsilon"),
    "rope_theta": _Spelling("rope_theta", "rotary_base"),
    "experts_ffn": _Spelling("moe_intermediate_size", "moe_ffn_hidden_size"),
    "experts_per_token": _Spelling("num_experts_per_tok", "moe_router_topk"),
    "expert_groups": _Spelling("n_group", "moe_router_num_groups"),
    "chosen_groups": _Spelling("topk_group", "moe_router_group_topk"),
    "routed_scale": _Spelling("routed_scaling_factor", "moe_router_topk_scaling_factor"),
    "shared_ffn": _Spelling(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"
    ),
    "attention_dropout": _Spelling("attention_dropout", "attention_dropout"),
    "hidden_dropout": _Spelling("", "hidden_dropout"),
    "q_latent": _Spelling("q_lora_rank", "q_lora_rank"),
    "kv_latent": _Spelling("kv_lora_rank", "kv_lora_rank"),
    "rope_size": _Spelling("qk_rope_head_dim", "qk_pos_emb_head_dim"),
    "nope_size": _Spelling("qk_nope_head_dim", "qk_head_dim"),
    "value_size": _Spelling("v_head_dim", "v_head_dim"),
    "qk_norm": _Spelling("", "qk_layernorm"),
    "predictions": _Spelling("num_nextn_predict_layers", "mtp_num_layers"),
    "rotary_share": _Spelling("partial_rotary_factor", "rotary_percent"),
    "glu_limit": _Spelling("swiglu_limit", "activation_func_clamp_value"),
}
#: The same of a model whose layers have mixers of Mamba: those above that it has, and its own.
_MIXER_SPELLINGS: Mapping[str, _Spelling] = {
    **{
        fact: _SPELLINGS[fact]
        for fact in ("layers", "hidden", "vocabulary", "positions", "norm_epsilon")
    },
    **{fact: _Spelling(*names) for fact, names in mamba.SPELLINGS.items()},
}
#: Fact -> suffix of a canonical name, and the axis whose length is the fact.
_SHAPE_FACTS = {
    "vocabulary": ("embedding.weight", 0),
    "hidden": ("embedding.weight", 1),
    "positions": ("position_embedding.weight", 0),
    "experts": ("mlp.router.weight", 0),
    "ffn": (".mlp.down_proj.weight", 1),
    "experts_ffn": (".mlp.experts.0.down_proj.weight", 1),
    "shared_ffn": (".mlp.shared_experts.down_proj.weight", 1),
    "q_latent": (".attention.q_b.weight", 1),
    "kv_latent": (".attention.kv_b.weight", 1),
}
#: Settings of config.json that Megatron's arguments have in another form: see ``build_arguments``,
#: and the number of experts and of dense layers, which come from the parameters.
_CARRIED_SETTINGS = frozenset(
    {
        "num_local_experts", "n_routed_experts", "num_experts", "first_k_dense_replace",
        "moe_layer_freq", "n_shared_experts", "tie_word_embeddings", "attention_bias", "mlp_bias",
        "norm_topk_prob", "rope_scaling", "rope_parameters", "head_dim", "qk_head_dim",
        "decoder_sparse_step", "mlp_only_layers", "qkv_bias", "embd_pdrop", "quantization_config",
    }
)  # fmt: skip
#: Megatron's arguments about the model's computation that no fact above is about.
_MODEL_ARGUMENTS = re.compile(
    r"(moe|rotary|rope|yarn|window|qk|apply)_|(mscale|mscale_all_dim|beta_fast|beta_slow|softmax_type"
    r"|original_max_position_embeddings|quick_geglu|glu_linear_offset|squared_relu|openai_gelu"
    r"|no_rope_freq|use_rope_scaling|attention_softmax_in_fp32|fp32_residual_connection)$"
)
#: Of a scaling of RoPE; some models state it without one.
_UNSCALED_POSITIONS = "original_max_position_embeddings"
#: Settings that do not change what a forward and a backward pass compute.
_EFFECTLESS_SETTINGS = frozenset(
    {
        "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "use_cache",
        "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "pretraining_tp",
        "auto_map", "_name_or_path", "max_window_layers", "output_router_logits", "ep_size",
        "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "router_jitter_noise", "n_ctx",
        "task_specific_params", "summary_type", "summary_use_proj", "summary_proj_to_labels",
        "summary_activation", "summary_first_dropout", "_attn_implementation", "keys_to_ignore",
        "use_bfloat16", "chunk_size_feed_forward", "return_dict", "is_encoder_decoder",
        "id2label", "label2id", "problem_type", "cross_attention_hidden_size",
    }
)  # fmt: skip
#: Settings that change nothing with this value: what Megatron computes anyway. The values that a
#: family always has (rules/families) are like them.
_IDLE_VALUES: Mapping[str, tuple[Any, ...]] = {
    "activation_function": ("gelu_new",),
    "scale_attn_weights": (True,),
    "partial_rotary_factor": (1.0,),
    "rope_interleave": (True,),
    "topk_method": ("noaux_tc", "greedy"),
    "scoring_func": ("sigmoid",),
}


def collect_facts(model: CanonicalCheckpoint) -> dict[str, Any]:
    """Return fact -> value: keys of ``_SPELLINGS``, ``experts`` and ``tied``.

    Facts from shapes replace those from settings. Unknown facts are missing. Raises DumpError if
    the user states another value than the source.
    """
    family = find_model_family(model.settings, model.rules)
    facts = _read_facts(model.settings, family, _get_spellings(model))
    expert_settings.drop_unused_groups(facts, model.settings)
    if model.n_predictions == 0:  # the settings may count layers that the files do not have
        facts.pop("predictions", None)
    measured_facts = _measure_facts(model)
    if model.has_mixers:
        measured_facts = _measure_mixer_facts(model, facts)
    facts |= {fact: value for fact, value in measured_facts.items() if value is not None}
    for fact, value in model.stated_facts.items():
        if facts.setdefault(fact, value) != value:
            option = _SPELLINGS[fact].megatron.replace("_", "-")
            raise DumpError(f"--{option} {value}: the source says {facts[fact]}")
    return facts


def _get_spellings(model: CanonicalCheckpoint) -> Mapping[str, _Spelling]:
    return _MIXER_SPELLINGS if model.has_mixers else _SPELLINGS


def _measure_mixer_facts(model: CanonicalCheckpoint, stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that the parameters of mixers show."""
    vocabulary, hidden = model.parameters["embedding.weight"].shape
    return {
        "layers": model.n_layers,
        "vocabulary": vocabulary,
        "hidden": hidden,
        "tied": "head.weight" not in model.parameters,
        **mamba.measure_facts(model.parameters, stated),
    }


def _read_facts(
    settings: Mapping[str, Any], family: ModelFamily | None, spellings: Mapping[str, _Spelling]
) -> dict[str, Any]:
    """Return the facts that settings state, in the spelling of any framework."""
    flat_settings = dict(settings)
    rope_parameters = settings.get("rope_parameters")  # of transformers 5
    if isinstance(rope_parameters, Mapping):
        for name in ("rope_theta", "partial_rotary_factor"):
            flat_settings.setdefault(name, rope_parameters.get(name))
    own_names = family.config if family is not None else {}
    facts = {}
    for fact, spelling in spellings.items():
        value = _read_number(flat_settings, (own_names.get(fact, ""), *spelling))
        if value is not None:
            facts[fact] = value
    return facts


def _read_number(settings: Mapping[str, Any], names: Sequence[str]) -> int | float | None:
    """Return the first setting that is a number, None if there is none."""
    for name in names:
        value = settings.get(name) if name else None
        if isinstance(value, (int, float)):
            return value
    return None


def _measure_facts(model: CanonicalCheckpoint) -> dict[str, Any]:
    """Return the facts that parameters and their shapes show; None for an unknown one."""
    config = model.config
    facts: dict[str, Any] = {
        "layers": model.n_layers,
        "heads": config.heads,
        "groups": config.groups,
        "qk_norm": model.has_parameter(".attention.k_norm.weight"),  # latent queries may have none
        "tied": "head.weight" not in model.parameters,
        "predictions": model.n_predictions or None,
    }
    for fact, (suffix, axis) in _SHAPE_FACTS.items():
        shape = _find_shape(model, suffix)
        if shape is not None:
            facts[fact] = shape[axis]
    query = model.parameters.get("layers.0.attention.q.weight")
    if query is not None and config.heads and not model.has_mla:
        facts["head_size"] = query.shape[0] // config.heads
    return facts


def _find_shape(model: CanonicalCheckpoint, suffix: str) -> tuple[int, int] | None:
    """Return the shape of the first parameter with a suffix; None if there is none.

    ``embedding.weight`` is a full name, because ``position_embedding.weight`` ends with it too.
    """
    if suffix == "embedding.weight":
        embedding = model.parameters.get(suffix)
        return None if embedding is None else embedding.shape
    for path, rows in model.parameters.items():
        if path.endswith(suffix):
            return rows.shape
    return None


def build_config(
    model: CanonicalCheckpoint, family: ModelFamily, model_type: str, dtype: str | None
) -> dict[str, Any] | None:
    """Return ``config.json``; None if the number of heads is unknown.

    It is that of the source if it is one of transformers, else it is built from the known facts.
    """
    facts = collect_facts(model)
    if model.settings.get("model_type"):
        return _update_config(model, family, facts, dtype)
    if "heads" not in facts and not model.has_mixers:
        return None
    config: dict[str, Any] = {
        "architectures": [family.classes[model_type]],
        "model_type": model_type,
        **family.values,
    }
    names = {fact: spelling.transformers for fact, spelling in _get_spellings(model).items()}
    names.update(family.config)
    for fact, name in names.items():
        if name and fact in facts:
            config[name] = facts[fact]
    config["tie_word_embeddings"] = facts["tied"]
    config["torch_dtype"] = dtype or _find_most_common_dtype(model)
    if model.has_mixers:
        config["residual_in_fp32"] = bool(model.settings.get("fp32_residual_connection"))
        return config
    if "position_embedding.weight" in model.parameters:
        return config
    scaling = read_rope_scaling(model.settings)
    if scaling:
        config["rope_scaling"] = scaling
    windows = attention_windows.read_windows(model.settings, model.n_layers)
    if windows is not None:
        config.update(attention_windows.build_window_settings(windows))
    config["attention_bias"] = model.has_parameter(".attention.q.bias")
    if model.has_parameter(".mlp.down_proj.bias"):
        config["mlp_bias"] = True
    if "experts" in facts:
        config.update(expert_settings.build_settings(model, facts, family))
    if model.has_mla:
        config["q_lora_rank"] = facts.get("q_latent")
        config["num_key_value_heads"] = facts["heads"]
        config.pop("head_dim", None)
    return config


def _update_config(
    model: CanonicalCheckpoint, family: ModelFamily, facts: Mapping[str, Any], dtype: str | None
) -> dict[str, Any]:
    """Return the source's configuration with the properties that a conversion changes."""
    config = dict(model.settings)
    if model.is_decoded:
        config.pop("quantization_config", None)
    known_facts = _read_facts(config, family, _get_spellings(model))
    for fact, value in model.stated_facts.items():
        if fact not in known_facts:
            config[family.config.get(fact, _SPELLINGS[fact].transformers)] = value
    config["vocab_size"] = facts["vocabulary"]
    config["tie_word_embeddings"] = facts["tied"]
    if dtype:
        for name in ("dtype", "torch_dtype"):
            if name in config:
                config[name] = dtype
    return config


def build_arguments(
    model: CanonicalCheckpoint,
    sizes: ParallelSizes,
    padded_vocabulary: int,
    transformer_engine: bool,
) -> dict[str, Any]:
    """Return Megatron's ``args`` for the model (names: megatron/training/arguments.py)."""
    facts = collect_facts(model)
    arguments = _carry_arguments(model.settings)
    stated_arguments = {
        spelling.megatron: facts[fact]
        for fact, spelling in _get_spellings(model).items()
        if fact in facts and spelling.megatron
    }
    arguments |= stated_arguments
    arguments.setdefault("ffn_hidden_size", arguments.get("moe_ffn_hidden_size"))
    has_learned_positions = "position_embedding.weight" in model.parameters
    has_layer_norm = model.has_parameter("final_norm.bias")
    arguments |= {
        **build_size_arguments(sizes, facts["layers"], model.n_predictions),
        "vocab_size": model.config.vocabulary,
        "padded_vocab_size": padded_vocabulary,
        "group_query_attention": not model.has_mla and facts.get("groups") != facts.get("heads"),
        "untie_embeddings_and_output_weights": not facts["tied"],
        "add_bias_linear": model.has_parameter(".attention.out.bias"),
        "add_qkv_bias": model.has_parameter(".attention.q.bias"),
        "normalization": "LayerNorm" if has_layer_norm else "RMSNorm",
        "position_embedding_type": "learned_absolute" if has_learned_positions else "rope",
        "multi_latent_attention": model.has_mla,
        "transformer_impl": "transformer_engine" if transformer_engine else "local",
        "use_checkpoint_args": False,
    }
    if model.has_mla:
        arguments.setdefault("q_lora_rank", None)  # the default of the class is a number
    windows = attention_windows.read_windows(model.settings, model.n_layers)
    if windows is not None:
        arguments |= attention_windows.build_window_arguments(windows)
    scaling = read_rope_scaling(model.settings)
    if not has_learned_positions:
        arguments |= build_megatron_scaling(scaling, has_mla=model.has_mla) or {}
    if "experts" in facts:
        for name, value in expert_settings.build_arguments(model).items():
            if name not in stated_arguments:
                arguments[name] = value
        arguments["num_experts"] = facts["experts"]
    is_gated = model.has_parameter("gate_proj.weight")
    arguments["swiglu"] = is_gated and not arguments.get("quick_geglu")
    if model.has_mixers:
        mamba.check_tensor_ranks(facts, sizes.tensor)
        arguments |= mamba.build_arguments(facts, model.settings)
        arguments |= mamba.build_stage_arguments(sizes.stage_layers, sizes.virtual)
    return arguments


def _carry_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a run of Megatron that say what its model computes; none for others.

    Those that the parameters or the sizes of the target decide are replaced later.
    """
    if settings.get("model_type"):
        return {}
    return {name: value for name, value in settings.items() if _MODEL_ARGUMENTS.match(name)}


def list_lost_settings(model: CanonicalCheckpoint) -> tuple[str, ...]:
    """Return the settings of config.json that are neither written as arguments nor without effect.

    Each with its value.
    """
    settings = model.settings
    if not isinstance(settings.get("model_type"), str):
        return ()
    lost = []
    scaling = read_rope_scaling(settings)
    if not has_argument(scaling, has_mla=model.has_mla):
        numbers = ", ".join(f"{key} {value}" for key, value in scaling.items())
        lost.append(f"the scaling of RoPE ({numbers})")
    family = find_model_family(settings, model.rules)
    written = {name for spelling in _get_spellings(model).values() for name in spelling if name}
    if model.n_predictions == 0:
        written -= set(_SPELLINGS["predictions"])
    written.update(() if family is None else family.config.values())
    written |= attention_windows.list_carried_settings(settings, model.n_layers)
    for key, value in settings.items():
        is_off = value in (None, False, 0, [], {})
        if key in written or key in _CARRIED_SETTINGS or key in _EFFECTLESS_SETTINGS or is_off:
            continue
        is_of_family = family is not None and family.values.get(key) == value
        if is_of_family or value in _IDLE_VALUES.get(key, ()):
            continue
        if model.has_mixers and mamba.is_idle(key, value):
            continue
        if key == "layer_types" and set(value) == {"full_attention"}:
            continue
        if key == _UNSCALED_POSITIONS and not scaling:
            continue
        lost.append(f"{key} {value}")
    lost += expert_settings.list_lost_settings(model)
    if model.has_mixers:
        lost += mamba.list_lost_settings(collect_facts(model))
    return tuple(lost)


def list_unknown_settings(model: CanonicalCheckpoint) -> tuple[str, ...]:
    """Return the settings that change what the model computes and are not stated by the source."""
    facts = collect_facts(model)
    required_facts = ["norm_epsilon"]
    if model.has_mixers:
        required_facts.append("mixer_groups")
    elif "position_embedding.weight" not in model.parameters:
        required_facts.append("rope_theta")
    if "experts" in facts:
        required_facts.append("experts_per_token")
    spellings = _get_spellings(model)
    return tuple(spellings[fact].transformers for fact in required_facts if fact not in facts)


def _find_most_common_dtype(model: CanonicalCheckpoint) -> str:
    counts = Counter(rows.dtype for rows in model.parameters.values())
    return counts.most_common(1)[0][0]
