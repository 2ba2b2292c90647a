"""Convert weights of a Hugging Face model to the layouts of other frameworks.

Plain NumPy on float32: what each function does to names and rows is what the framework's own
modules read (megatron/core/transformer/{attention,mlp}.py, moe/experts.py;
mindformers/parallel_core/training_graph/transformer). ``config`` is the dict of config.json.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

Weights = dict[str, np.ndarray]

_LAYER = re.compile(r"^(?:model\.layers|transformer\.h)\.(\d+)\.(.*)$")


def fuse_qkv_by_group(q: np.ndarray, k: np.ndarray, v: np.ndarray, groups: int) -> np.ndarray:
    """Fuse as in Megatron's linear_qkv: for each query group its queries, its key, its value."""
    parts = [part.reshape(groups, part.shape[0] // groups, *part.shape[1:]) for part in (q, k, v)]
    return np.concatenate(parts, axis=1).reshape(-1, *q.shape[1:])


def interleave_rows(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Interleave gate and up row by row, as in linear_fc1 of MindSpore Transformers."""
    return np.stack([gate, up], axis=1).reshape(-1, *gate.shape[1:])


def group_by_layer(weights: Weights) -> dict[int, Weights]:
    layers: dict[int, Weights] = {}
    for name, value in weights.items():
        if matched := _LAYER.match(name):
            layers.setdefault(int(matched[1]), {})[matched[2]] = value
    return layers


def convert_to_mcore(
    weights: Weights,
    config: Mapping[str, object],
    *,
    qkv: Callable[..., np.ndarray] = fuse_qkv_by_group,
    gate_up: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda gate, up: np.concatenate(
        [gate, up]
    ),
    grouped_experts: bool = False,
    te: bool = False,
) -> Weights:
    """Convert to Megatron-core (local spec or Transformer Engine), unsplit.

    Llama, Qwen3, Mixtral and DeepSeek are supported.
    """
    groups = int(config.get("num_key_value_heads", config["num_attention_heads"]))
    converted: Weights = {
        "embedding.word_embeddings.weight": weights["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": weights["model.norm.weight"],
    }
    if "lm_head.weight" in weights:
        converted["output_layer.weight"] = weights["lm_head.weight"]
    for number, layer in group_by_layer(weights).items():
        prefix = f"decoder.layers.{number}."
        norm = "self_attention.linear_qkv.layer_norm_weight" if te else "input_layernorm.weight"
        if "self_attn.kv_b_proj.weight" in layer:
            norm = "input_layernorm.weight"
            for source_name, target_name in (
                ("q_a_proj", "linear_q_down_proj"),
                ("q_b_proj", "linear_q_up_proj"),
                ("kv_a_proj_with_mqa", "linear_kv_down_proj"),
                ("kv_b_proj", "linear_kv_up_proj"),
                ("q_a_layernorm", "q_layernorm"),
                ("kv_a_layernorm", "kv_layernorm"),
            ):
                converted[f"{prefix}self_attention.{target_name}.weight"] = layer[
                    f"self_attn.{source_name}.weight"
                ]
        else:
            q, k, v = (layer[f"self_attn.{part}_proj.weight"] for part in "qkv")
            converted[f"{prefix}self_attention.linear_qkv.weight"] = qkv(q, k, v, groups)
            for part in "qk":
                if f"self_attn.{part}_norm.weight" in layer:
                    converted[f"{prefix}self_attention.{part}_layernorm.weight"] = layer[
                        f"self_attn.{part}_norm.weight"
                    ]
        converted[prefix + norm] = layer["input_layernorm.weight"]
        converted[f"{prefix}self_attention.linear_proj.weight"] = layer["self_attn.o_proj.weight"]
        moe = any(".experts." in name for name in layer)
        converted[
            prefix
            + ("mlp.linear_fc1.layer_norm_weight" if te and not moe else "pre_mlp_layernorm.weight")
        ] = layer["post_attention_layernorm.weight"]
        converted |= convert_mlp(layer, prefix, gate_up, grouped_experts)
    return converted


def convert_mlp(
    layer: Weights, prefix: str, gate_up: Callable[..., np.ndarray], grouped: bool
) -> Weights:
    converted: Weights = {}
    if "mlp.gate_proj.weight" in layer:
        converted[f"{prefix}mlp.linear_fc1.weight"] = gate_up(
            layer["mlp.gate_proj.weight"], layer["mlp.up_proj.weight"]
        )
        converted[f"{prefix}mlp.linear_fc2.weight"] = layer["mlp.down_proj.weight"]
        return converted
    mixtral = "block_sparse_moe.gate.weight" in layer
    stem = "block_sparse_moe" if mixtral else "mlp"
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    converted[f"{prefix}mlp.router.weight"] = layer[f"{stem}.gate.weight"]
    if "mlp.gate.e_score_correction_bias" in layer:
        converted[f"{prefix}mlp.router.expert_bias"] = layer["mlp.gate.e_score_correction_bias"]
    if "mlp.shared_experts.gate_proj.weight" in layer:
        shared = [
            layer[f"mlp.shared_experts.{name}.weight"]
            for name in ("gate_proj", "up_proj", "down_proj")
        ]
        converted[f"{prefix}mlp.shared_experts.linear_fc1.weight"] = gate_up(*shared[:2])
        converted[f"{prefix}mlp.shared_experts.linear_fc2.weight"] = shared[2]
    count = 1 + max(
        int(m[1]) for name in layer if (m := re.match(rf"{stem}\.experts\.(\d+)\.", name))
    )
    experts = [[layer[f"{stem}.experts.{e}.{name}.weight"] for name in names] for e in range(count)]
    if grouped:  # [E, H, 2I] and [E, I, H]: the bytes of GroupedMLP's weight1 and weight2
        converted[f"{prefix}mlp.experts.weight1"] = np.stack(
            [np.concatenate([g.T, u.T], axis=1) for g, u, _ in experts]
        )
        converted[f"{prefix}mlp.experts.weight2"] = np.stack([d.T for _, _, d in experts])
        return converted
    for e, (gate, up, down) in enumerate(experts):
        converted[f"{prefix}mlp.experts.local_experts.{e}.linear_fc1.weight"] = np.concatenate(
            [gate, up]
        )
        converted[f"{prefix}mlp.experts.local_experts.{e}.linear_fc2.weight"] = down
    return converted


def convert_gpt2_to_mcore(weights: Weights, config: Mapping[str, object]) -> Weights:
    """Convert GPT-2 to Megatron-core: transpose Conv1D, fuse q, k and v by head."""
    heads = int(config["n_head"])
    converted: Weights = {
        "embedding.word_embeddings.weight": weights["transformer.wte.weight"],
        "embedding.position_embeddings.weight": weights["transformer.wpe.weight"],
        "decoder.final_layernorm.weight": weights["transformer.ln_f.weight"],
        "decoder.final_layernorm.bias": weights["transformer.ln_f.bias"],
    }
    for number, layer in group_by_layer(weights).items():
        prefix = f"decoder.layers.{number}."
        for leaf in ("weight", "bias"):
            fused = layer[f"attn.c_attn.{leaf}"].T
            converted[f"{prefix}self_attention.linear_qkv.{leaf}"] = fuse_qkv_by_group(
                *np.split(fused, 3), heads
            )
            converted[f"{prefix}self_attention.linear_proj.{leaf}"] = layer[f"attn.c_proj.{leaf}"].T
            converted[f"{prefix}mlp.linear_fc1.{leaf}"] = layer[f"mlp.c_fc.{leaf}"].T
            converted[f"{prefix}mlp.linear_fc2.{leaf}"] = layer[f"mlp.c_proj.{leaf}"].T
            converted[f"{prefix}input_layernorm.{leaf}"] = layer[f"ln_1.{leaf}"]
            converted[f"{prefix}pre_mlp_layernorm.{leaf}"] = layer[f"ln_2.{leaf}"]
    return converted


def convert_to_mindformers_legacy(weights: Weights, config: Mapping[str, object]) -> Weights:
    """Convert to older models of MindSpore Transformers, without fused weights."""
    converted: Weights = {
        "model.tok_embeddings.embedding_weight": weights["model.embed_tokens.weight"],
        "model.norm_out.weight": weights["model.norm.weight"],
        "lm_head.weight": weights["lm_head.weight"],
    }
    table = {
        "self_attn.q_proj": "attention.wq",
        "self_attn.k_proj": "attention.wk",
        "self_attn.v_proj": "attention.wv",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for number, layer in group_by_layer(weights).items():
        for source_name, target_name in table.items():
            converted[f"model.layers.{number}.{target_name}.weight"] = layer[
                f"{source_name}.weight"
            ]
    return converted


def convert_to_mindformers_mla(weights: Weights, config: Mapping[str, object]) -> Weights:
    """Convert MLA to MindSpore Transformers: both down projections in one linear_qkv."""
    table = {
        "linear_q_up_proj": "linear_qb",
        "linear_kv_up_proj": "linear_kvb",
        "kv_layernorm": "k_layernorm",
    }
    converted: Weights = {}
    for name, value in convert_to_mcore(weights, config).items():
        for source_name, target_name in table.items():
            name = name.replace(source_name, target_name)  # noqa: PLW2901
        converted[name] = value
    for number in group_by_layer(weights):
        prefix = f"decoder.layers.{number}.self_attention."
        parts = [converted.pop(f"{prefix}linear_{part}_down_proj.weight") for part in ("q", "kv")]
        converted[f"{prefix}linear_qkv.weight"] = np.concatenate(parts)
    return converted


def convert_to_mindformers_legacy_mla(weights: Weights, config: Mapping[str, object]) -> Weights:
    """Convert DeepSeek attention to the older names: no fused weights, RoPE rows in halves."""
    heads, nope, rope, latent = (
        int(config[key])
        for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank")
    )
    converted: Weights = {}
    for number, layer in group_by_layer(weights).items():
        prefix = f"model.layers.{number}.attention."
        arrays = {
            name.removeprefix("self_attn.").removesuffix(".weight"): v for name, v in layer.items()
        }
        q_b, kv_b = (
            arrays[name].reshape(heads, -1, arrays[name].shape[1])
            for name in ("q_b_proj", "kv_b_proj")
        )
        kv_a = arrays["kv_a_proj_with_mqa"]
        parts = {
            "q2l_proj": arrays["q_a_proj"],
            "lq_norm": arrays["q_a_layernorm"],
            "lkv_norm": arrays["kv_a_layernorm"],
            "l2q_nope_proj": q_b[:, :nope],
            "l2q_pe_proj": reorder_pairs_to_halves(q_b[:, nope:].reshape(heads * rope, -1), heads),
            "kv2l_latent_kv": kv_a[:latent],
            "kv2l_k_pe": reorder_pairs_to_halves(kv_a[latent:], 1),
            "lkv2kv_k_nope": kv_b[:, :nope],
            "lkv2kv_v": kv_b[:, nope:],
            "wo": arrays["o_proj"],
        }
        converted |= {
            f"{prefix}{name}.weight": v.reshape(-1, v.shape[-1]) if v.ndim > 1 else v
            for name, v in parts.items()
        }
    return converted


def convert_to_phi3(weights: Weights, config: Mapping[str, object]) -> Weights:
    """Fuse q, k, v and gate, up of a Llama, as transformers stores Phi-3."""
    converted: Weights = {}
    for name, value in weights.items():
        if name.endswith("q_proj.weight"):
            parts = [weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            converted[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts)
        elif name.endswith("gate_proj.weight"):
            fused = np.concatenate([value, weights[name.replace("gate", "up")]])
            converted[name.replace("gate_proj", "gate_up_proj")] = fused
        elif not name.endswith(("k_proj.weight", "v_proj.weight", "up_proj.weight")):
            converted[name] = value
    return converted


def convert_to_meta(weights: Weights, config: Mapping[str, object]) -> Weights:
    """Convert Llama to Meta's files: legacy names without prefix, q and k rows in pairs."""
    converted = {
        name.removeprefix("model."): value
        for name, value in convert_to_mindformers_legacy(weights, config).items()
    }
    converted["tok_embeddings.weight"] = converted.pop("tok_embeddings.embedding_weight")
    converted["norm.weight"] = converted.pop("norm_out.weight")
    converted["output.weight"] = converted.pop("lm_head.weight")
    return {
        name: reorder_halves_to_pairs(
            value, int(config["num_attention_heads" if ".wq." in name else "num_key_value_heads"])
        )
        if name.endswith((".wq.weight", ".wk.weight"))
        else value
        for name, value in converted.items()
    }


def reorder_halves_to_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head from halves to pairs."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def reorder_pairs_to_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head from pairs to halves."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


_COLUMN = re.compile(
    r"(linear_qkv|linear_fc1|word_embeddings|output_layer|_up_proj|query_key_value)\.(weight|bias)$"
)
_ROW = re.compile(r"(linear_proj|linear_fc2)\.weight$")
_NUMBERED = re.compile(r"^decoder\.layers\.(\d+)\.")


def shard_weights(
    weights: Weights, tensor: int, stages: int, gated: bool = True
) -> dict[tuple[int, int], Weights]:
    """Split weights of Megatron-core over tensor-parallel and pipeline-parallel ranks.

    Layers are numbered within a stage.
    """
    layers = 1 + max(int(m[1]) for name in weights if (m := _NUMBERED.match(name)))
    assert layers % stages == 0
    shards: dict[tuple[int, int], Weights] = {
        (t, p): {} for t in range(tensor) for p in range(stages)
    }
    for name, value in weights.items():
        stage, local_name = 0, name
        if matched := _NUMBERED.match(name):
            stage, local = divmod(int(matched[1]), layers // stages)
            local_name = _NUMBERED.sub(f"decoder.layers.{local}.", name)
        elif name.startswith(("decoder.final", "output_layer")):
            stage = stages - 1
        for rank in range(tensor):
            part = value
            if gated and "linear_fc1.weight" in name:
                halves = np.split(value, 2)
                part = np.concatenate([np.split(half, tensor)[rank] for half in halves])
            elif _COLUMN.search(name):
                part = np.split(value, tensor)[rank]
            elif _ROW.search(name):
                part = np.split(value, tensor, axis=1)[rank]
            shards[rank, stage][local_name] = part
    return shards


def save_megatron(
    folder: Path,
    ranks: Mapping[tuple[int, int], Weights],
    arguments: Mapping[str, object],
    dtype: str = "",
) -> Path:
    """Write ``iter_0000010/mp_rank_*`` as Megatron-LM does.

    With a ``dtype`` the arrays hold the bits of its elements.
    """
    import torch

    stages = 1 + max(stage for _, stage in ranks)
    for (tensor, stage), weights in ranks.items():
        name = f"mp_rank_{tensor:02d}" + (f"_{stage:03d}" if stages > 1 else "")
        place = folder / "iter_0000010" / name
        place.mkdir(parents=True)
        model = {
            parameter: torch.from_numpy(np.ascontiguousarray(value))
            for parameter, value in weights.items()
        }
        if dtype:
            model = {
                parameter: value.view(getattr(torch, dtype)) for parameter, value in model.items()
            }
        torch.save(
            {
                "args": Namespace(**arguments),
                "checkpoint_version": 3.0,
                "iteration": 10,
                "model": model,
            },
            place / "model_optim_rng.pt",
        )
    (folder / "latest_checkpointed_iteration.txt").write_text("10")
    return folder
