"""The same weights as Megatron stores them, written without dumpdiff.

Weights of transformers are read as plain parts (*roles*: q, k, v, gate, up), changed if a mistake
is wanted, and written with Megatron's names. Sources: megatron-core transformer/{attention,mlp}.py,
models/gpt, ssm/mamba_mixer.py; Megatron-Bridge models/{gemma,glm,gpt_oss} for the norms behind a
linear layer and for sinks; timm models/vision_transformer.py.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

Weights = dict[str, np.ndarray]
Config = Mapping[str, object]

_LAYER = re.compile(
    r"^(?:model|transformer|gpt_neox|backbone|vit\.encoder)\.(?:layers|h|layer)\.(\d+)\.(.+)$"
)
_PADDED_ROWS = 256  #: rows of the embedding in Megatron's files

#: Name in transformers below a layer, or of the whole model -> role.
_ROLES = {
    **{f"self_attn.{part}_proj": part for part in "qkv"},
    "self_attn.o_proj": "out",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "self_attn.sinks": "sinks",
    "self_attn.qkv_proj": "fused_qkv",
    "self_attn.q_a_proj": "q_a",
    "self_attn.q_b_proj": "q_b",
    "self_attn.kv_a_proj_with_mqa": "kv_a",
    "self_attn.kv_b_proj": "kv_b",
    "self_attn.q_a_layernorm": "q_latent_norm",
    "self_attn.kv_a_layernorm": "kv_latent_norm",
    "self_attention.query_key_value": "fused_qkv",
    "self_attention.dense": "out",
    "attention.query_key_value": "fused_qkv",
    "attention.dense": "out",
    "attn.c_attn": "fused_qkv",
    "attn.c_proj": "out",
    "attention.attention.query": "q",
    "attention.attention.key": "k",
    "attention.attention.value": "v",
    "attention.output.dense": "out",
    "intermediate.dense": "fc1",
    "output.dense": "down",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "mlp.gate_up_proj": "fused_gate_up",
    "mlp.c_fc": "fc1",
    "mlp.c_proj": "down",
    "mlp.dense_h_to_4h": "fc1",
    "mlp.dense_4h_to_h": "down",
    "mlp.gate": "router",
    "mlp.router": "router",
    "block_sparse_moe.gate": "router",
    "ln_1": "input_norm",
    "ln_2": "mlp_norm",
    "ln_attn": "input_norm",
    "ln_mlp": "mlp_norm",
    "layernorm_before": "input_norm",
    "layernorm_after": "mlp_norm",
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "mlp_norm",
}
#: Families whose norms have the names of Llama in other places.
_SANDWICH = {
    "post_attention_layernorm": "attention_out_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_out_norm",
}
#: The modules of Mamba 2 have the same names in Megatron.
_MAMBA = {
    "norm": "input_norm",
    "mixer.in_proj": "in",
    "mixer.conv1d": "conv",
    "mixer.out_proj": "out",
}
_OTHER_ROLES = {
    "Gemma 2": _SANDWICH,
    "Gemma 3": _SANDWICH,
    "OLMo2": _SANDWICH,
    "GLM-4": {
        "post_self_attn_layernorm": "attention_out_norm",
        "post_mlp_layernorm": "mlp_out_norm",
    },
    "Mamba 2": _MAMBA,
}
_MODEL_ROLES = {
    "model.embed_tokens": "embedding",
    "transformer.wte": "embedding",
    "transformer.wpe": "positions",
    "transformer.word_embeddings": "embedding",
    "transformer.word_embeddings_layernorm": "embedding_norm",
    "gpt_neox.embed_in": "embedding",
    "backbone.embeddings": "embedding",
    "model.norm": "final_norm",
    "transformer.ln_f": "final_norm",
    "gpt_neox.final_layer_norm": "final_norm",
    "backbone.norm_f": "final_norm",
    "lm_head": "head",
    "embed_out": "head",
}
#: How the rows of a fused qkv are ordered in transformers; by group everywhere else.
_CONCATENATED_QKV = ("Phi-3", "GPT-2", "Falcon")
_CORE = {
    "fused_qkv": "self_attention.linear_qkv",
    "out": "self_attention.linear_proj",
    "q_norm": "self_attention.q_layernorm",
    "k_norm": "self_attention.k_layernorm",
    "q_a": "self_attention.linear_q_down_proj",
    "q_b": "self_attention.linear_q_up_proj",
    "kv_a": "self_attention.linear_kv_down_proj",
    "kv_b": "self_attention.linear_kv_up_proj",
    "q_latent_norm": "self_attention.q_layernorm",
    "kv_latent_norm": "self_attention.kv_layernorm",
    "fc1": "mlp.linear_fc1",
    "fused_gate_up": "mlp.linear_fc1",
    "down": "mlp.linear_fc2",
    "router": "mlp.router",
    "input_norm": "input_layernorm",
    "mlp_norm": "pre_mlp_layernorm",
    "attention_out_norm": "self_attention.linear_proj.post_layernorm",
    "mlp_out_norm": "mlp.linear_fc2.post_layernorm",
}
_CORE_MODEL = {
    "embedding": "embedding.word_embeddings",
    "positions": "embedding.position_embeddings",
    "embedding_norm": "embedding.word_embeddings_layernorm",
    "final_norm": "decoder.final_layernorm",
    "head": "output_layer",
}


#: Of families that are compared with the memory of transformers: where the layers of each tower
#: begin in memory, and roles below a layer that others do not have. Layers of the second tower
#: count from 100.
_TOWERS: dict[str, tuple[str, ...]] = {
    "Qwen3-Next": (r"model\.layers\.(\d+)\.(.+)",),
    "Qwen2.5-VL": (
        r"model\.language_model\.layers\.(\d+)\.(.+)",
        r"model\.visual\.blocks\.(\d+)\.(.+)",
    ),
    "T5": (
        # the norms of a layer differ in the number only
        r"encoder\.block\.(\d+)\.(?:layer\.\d+\.(?!layer_norm))?(.+)",
        r"decoder\.block\.(\d+)\.(?:layer\.\d+\.(?!layer_norm))?(.+)",
    ),
}
_SECOND_TOWER = 100
_MEMORY_ROLES = {
    "attn.proj": "out",
    "norm1": "input_norm",
    "norm2": "mlp_norm",
    "linear_attn.out_proj": "out",
    "SelfAttention.q": "q",
    "SelfAttention.k": "t5_k",  # no rows of RoPE
    "SelfAttention.v": "v",
    "SelfAttention.o": "out",
    "EncDecAttention.o": "cross_out",
    "layer.0.layer_norm": "input_norm",
    "DenseReluDense.wi": "fc1",
    "DenseReluDense.wo": "down",
}
MEMORY_FAMILIES = tuple(_TOWERS)


@dataclass
class Roles:
    """The weights of a model by role. Keys are (layer, role, leaf); layer -1 is the whole model."""

    weights: dict[tuple[int, str, str], np.ndarray] = field(default_factory=dict)
    #: (layer, name) -> what has no role
    others: dict[tuple[int, str], np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Fusions:
    """How parts are joined; a mistake replaces one."""

    qkv: Callable[..., np.ndarray]
    gate_up: Callable[[np.ndarray, np.ndarray], np.ndarray]


def fuse_by_group(q: np.ndarray, k: np.ndarray, v: np.ndarray, groups: int) -> np.ndarray:
    """Fuse as linear_qkv does: for each query group its queries, its key, its value."""
    parts = [part.reshape(groups, part.shape[0] // groups, *part.shape[1:]) for part in (q, k, v)]
    return np.concatenate(parts, axis=1).reshape(-1, *q.shape[1:])


def concatenate_pair(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Join gate and up as linear_fc1 does."""
    return np.concatenate([gate, up])


CORRECT = Fusions(fuse_by_group, concatenate_pair)


def read_heads(family: str, config: Config) -> tuple[int, int]:
    """Return the number of heads and of query groups."""
    heads = config.get("num_attention_heads", config.get("n_head", config.get("num_heads")))
    groups = config.get("num_key_value_heads", config.get("num_kv_heads", heads))
    if family == "Falcon":
        groups = 1  # multi_query
    elif family == "BLOOM" or groups is None:
        groups = heads
    assert isinstance(heads, int)
    assert isinstance(groups, int)
    return heads, groups


def read_roles(family: str, weights: Weights, config: Config) -> Roles:
    """Return the weights of transformers by role; q, k, v, gate and up are separate."""
    result = Roles()
    roles = {**_ROLES, **_OTHER_ROLES.get(family, {})}
    for name, value in weights.items():
        module, _, leaf = name.rpartition(".")
        match = _LAYER.match(name)
        if match is None:
            if module in _MODEL_ROLES:
                result.weights[-1, _MODEL_ROLES[module], leaf] = value
            else:
                result.others[-1, name] = value
            continue
        layer, local_name = int(match[1]), match[2]
        module, _, leaf = local_name.rpartition(".")
        if local_name == "self_attn.sinks":
            result.weights[layer, "sinks", "weight"] = value
        elif module in roles:
            is_conv1d = family == "GPT-2" and value.ndim == 2
            _add_role(
                family, result, layer, roles[module], leaf, value.T if is_conv1d else value, config
            )
        elif ".experts" in local_name or "shared_expert" in local_name:
            _add_expert(result, layer, local_name, value)
        else:
            result.others[layer, local_name] = value
    return result


def read_memory(family: str, memory: Weights) -> tuple[Roles, dict[str, tuple[int, str, str]]]:
    """Return the weights in memory by role, and the key of each name; for MEMORY_FAMILIES."""
    roles, keys = Roles(), {}
    known_roles = {**_ROLES, **_MEMORY_ROLES}
    for name, value in memory.items():
        for tower, pattern in enumerate(_TOWERS[family]):
            match = re.fullmatch(pattern, name)
            if match is None:
                continue
            module, _, leaf = match[2].rpartition(".")
            if module in known_roles:
                layer = int(match[1]) + tower * _SECOND_TOWER
                keys[name] = (layer, known_roles[module], leaf)
                roles.weights[keys[name]] = value
    return roles, keys


def write_memory(
    memory: Weights, roles: Roles, keys: Mapping[str, tuple[int, str, str]]
) -> Weights:
    """Return the weights with the names of memory."""
    return {
        name: roles.weights[keys[name]] if name in keys else value for name, value in memory.items()
    }


def save_memory(file: Path, weights: Weights) -> Path:
    """Write weights as ``torch.save(model.state_dict())`` does."""
    import torch

    tensors = {name: torch.from_numpy(value.copy()) for name, value in weights.items()}
    torch.save(tensors, file)
    return file


def _add_role(
    family: str,
    result: Roles,
    layer: int,
    role: str,
    leaf: str,
    value: np.ndarray,
    config: Config,
) -> None:
    if role == "fused_gate_up":
        gate, up = np.split(value, 2)
        result.weights[layer, "gate", leaf] = gate
        result.weights[layer, "up", leaf] = up
        return
    if role != "fused_qkv":
        result.weights[layer, role, leaf] = value
        return
    heads, groups = read_heads(family, config)
    size = value.shape[0] // (heads + 2 * groups)
    lengths = [heads * size, groups * size, groups * size]
    if family in _CONCATENATED_QKV:
        parts = np.split(value, np.cumsum(lengths)[:2])
    else:
        grouped = value.reshape(groups, -1, *value.shape[1:])
        ends = np.cumsum([length // groups for length in lengths])[:2]
        parts = [part.reshape(-1, *value.shape[1:]) for part in np.split(grouped, ends, axis=1)]
    for part_role, part in zip("qkv", parts, strict=True):
        result.weights[layer, part_role, leaf] = part


_EXPERT_PARTS = {
    "gate_proj": "gate",
    "w1": "gate",
    "up_proj": "up",
    "w3": "up",
    "down_proj": "down",
    "w2": "down",
}


def _add_expert(result: Roles, layer: int, name: str, value: np.ndarray) -> None:
    """Add a weight of an expert, or of all experts of gpt-oss."""
    segments = name.split(".")
    if segments[-1] in ("gate_up_proj", "gate_up_proj_bias"):
        leaf = "bias" if segments[-1].endswith("bias") else "weight"
        for expert, stacked in enumerate(value):
            columns = stacked.T if leaf == "weight" else stacked
            result.weights[layer, f"expert.{expert}.gate", leaf] = columns[::2]
            result.weights[layer, f"expert.{expert}.up", leaf] = columns[1::2]
        return
    if segments[-1] in ("down_proj", "down_proj_bias"):
        leaf = "bias" if segments[-1].endswith("bias") else "weight"
        for expert, stacked in enumerate(value):
            matrix = stacked.T if leaf == "weight" else stacked
            result.weights[layer, f"expert.{expert}.down", leaf] = matrix
        return
    role = _EXPERT_PARTS[segments[-2]]
    is_shared = "shared_expert" in name
    prefix = "shared" if is_shared else f"expert.{segments[-3]}"
    result.weights[layer, f"{prefix}.{role}", segments[-1]] = value


def write_megatron(
    family: str, roles: Roles, config: Config, fusions: Fusions = CORRECT
) -> Weights:
    """Return the weights with Megatron's names; embedding and head are padded."""
    groups = read_heads(family, config)[1] if family != "Mamba 2" else 0
    result: Weights = {}
    parts = dict(roles.weights)
    for layer, role, leaf in roles.weights:
        if role == "q" and (layer, "k", leaf) in parts:
            q, k, v = (parts.pop((layer, part, leaf)) for part in "qkv")
            parts[layer, "fused_qkv", leaf] = fusions.qkv(q, k, v, groups)
        elif role.endswith("gate") and (layer, role[:-4] + "up", leaf) in parts:
            pair = [parts.pop((layer, role[:-4] + part, leaf)) for part in ("gate", "up")]
            parts[layer, role[:-4] + "fused_gate_up", leaf] = fusions.gate_up(*pair)
    for (layer, role, leaf), value in parts.items():
        result[_build_name(family, layer, role, leaf)] = _pad_vocabulary(role, value)
    for (layer, name), value in roles.others.items():
        prefix = f"decoder.layers.{layer}." if layer >= 0 else ""
        result[prefix + name] = value
    return result


def _pad_vocabulary(role: str, value: np.ndarray) -> np.ndarray:
    if role not in ("embedding", "head"):
        return value
    padding = np.zeros((_PADDED_ROWS - value.shape[0], value.shape[1]), value.dtype)
    return np.concatenate([value, padding])


def _build_name(family: str, layer: int, role: str, leaf: str) -> str:
    if (family, role) == ("Mamba 2", "final_norm"):
        return f"decoder.final_norm.{leaf}"
    if layer < 0:
        return f"{_CORE_MODEL[role]}.{leaf}"
    prefix = f"decoder.layers.{layer}."
    if family == "Mamba 2":
        module = next(module for module, other in _MAMBA.items() if other == role)
        return f"{prefix}{module}.{leaf}"
    if role == "sinks":
        return prefix + "self_attention.core_attention.softmax_offset"
    if role == "router" and leaf == "e_score_correction_bias":
        return prefix + "mlp.router.expert_bias"
    kind, _, part = role.rpartition(".")
    if kind == "shared":
        return (
            f"{prefix}mlp.shared_experts.{'linear_fc2' if part == 'down' else 'linear_fc1'}.{leaf}"
        )
    if kind:
        number = kind.split(".")[1]
        linear = "linear_fc2" if part == "down" else "linear_fc1"
        return f"{prefix}mlp.experts.local_experts.{number}.{linear}.{leaf}"
    return f"{prefix}{_CORE[role]}.{leaf}"


def build_arguments(family: str, config: Config, weights: Weights) -> dict[str, object]:
    """Return the arguments of a run of Megatron with this model."""
    arguments: dict[str, object] = {
        "hidden_size": weights["embedding.word_embeddings.weight"].shape[1],
        "padded_vocab_size": _PADDED_ROWS,
    }
    if family != "Mamba 2":
        heads, groups = read_heads(family, config)
        arguments |= {
            "num_attention_heads": heads,
            "num_query_groups": groups,
            "group_query_attention": heads != groups,
        }
        if isinstance(config.get("head_dim"), int):
            arguments["kv_channels"] = config["head_dim"]
    if family in ("Gemma 2", "Gemma 3"):
        arguments["apply_layernorm_1p"] = True
    arguments["swiglu"] = any("gate" in name for name in config)
    return arguments


def save_megatron(folder: Path, weights: Weights, arguments: Mapping[str, object]) -> Path:
    """Write ``iter_0000010/mp_rank_00`` as Megatron-LM does."""
    import torch

    place = folder / "iter_0000010" / "mp_rank_00"
    place.mkdir(parents=True)
    model = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in weights.items()}
    content = {"args": Namespace(**arguments), "iteration": 10, "model": model}
    torch.save(content, place / "model_optim_rng.pt")
    return folder


def concatenate_qkv(q: np.ndarray, k: np.ndarray, v: np.ndarray, groups: int) -> np.ndarray:
    """Fuse q, k and v one after the other, as timm does."""
    return np.concatenate([q, k, v])


def write_timm(
    roles: Roles, heads: int = 1, fuse: Callable[..., np.ndarray] = concatenate_qkv
) -> Weights:
    """Return a ViT with the names of timm; ``fuse`` joins q, k and v."""
    names = {
        "out": "attn.proj",
        "fc1": "mlp.fc1",
        "down": "mlp.fc2",
        "input_norm": "norm1",
        "mlp_norm": "norm2",
    }
    others = {
        "vit.embeddings.cls_token": "cls_token",
        "vit.embeddings.position_embeddings": "pos_embed",
        "vit.embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
        "vit.embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias",
        "vit.layernorm.weight": "norm.weight",
        "vit.layernorm.bias": "norm.bias",
        "classifier.weight": "head.weight",
        "classifier.bias": "head.bias",
    }
    result = {others[name]: value for (_, name), value in roles.others.items()}
    for (layer, role, leaf), value in roles.weights.items():
        if role == "q":
            parts = [roles.weights[layer, part, leaf] for part in "qkv"]
            result[f"blocks.{layer}.attn.qkv.{leaf}"] = fuse(*parts, heads)
        elif role not in ("k", "v"):
            result[f"blocks.{layer}.{names[role]}.{leaf}"] = value
    return result


def save_timm(file: Path, weights: Weights) -> Path:
    """Write weights as timm does."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(value) for name, value in weights.items()}, file)
    return file
