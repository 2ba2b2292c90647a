"""Deliberate mistakes of conversions, applied to correct weights, and their expected names.

A mistake gets the weights of a Hugging Face Llama (numpy, float32, by name) and its config, and
gives what the target holds; ``names`` are then found wrong, with this kind. Those on fused weights
work on Megatron-core's names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from . import layouts
from .layouts import Weights

Config = Mapping[str, object]


@dataclass(frozen=True)
class Case:
    """A mistake: what it changes, and how it must be reported."""

    name: str
    model: str  #: of models.py
    make: Callable[[Weights, Config], Weights]
    kind: str
    wrong_parameters: tuple[str, ...]  #: canonical names; '*' for any number
    family: str = "huggingface"  #: or mcore: the layout of the target
    holds: str = ""  #: what the first of them holds, where another parameter
    message_part: str = ""  #: words that the explanation has


def edit_tensors(
    **changes: Callable[[np.ndarray], np.ndarray],
) -> Callable[[Weights, Config], Weights]:
    """Change some tensors; keywords are names with '__' for dots."""

    def make(weights: Weights, config: Config) -> Weights:
        return {
            name: changes[key](value.copy())
            if (key := name.replace(".", "__")) in changes
            else value
            for name, value in weights.items()
        }

    return make


def exchange_tensors(first: str, second: str) -> Callable[[Weights, Config], Weights]:
    """Exchange two tensors, or all whose names contain these parts."""

    def make(weights: Weights, config: Config) -> Weights:
        def get_partner(name: str) -> str:
            return name.replace(first, second) if first in name else name.replace(second, first)

        return {name: weights[get_partner(name)] for name in weights}

    return make


def change_everywhere(
    part: str, change: Callable[[np.ndarray], np.ndarray]
) -> Callable[[Weights, Config], Weights]:
    """Change every tensor whose name contains ``part``."""
    return lambda weights, config: {
        n: change(v.copy()) if part in n else v for n, v in weights.items()
    }


def undo_rope_permutation(weights: Weights, config: Config) -> Weights:
    """Reorder q and k to pairs, as Meta stores them."""
    edited_weights = dict(weights)
    for name in weights:
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            edited_weights[name] = layouts.reorder_halves_to_pairs(weights[name], int(heads))
    return edited_weights


def rename_to_meta(weights: Weights, config: Config) -> Weights:
    """Rename to the names of Meta, without reordering q and k."""
    edited_weights = layouts.convert_to_meta(weights, config)
    for name in edited_weights:
        if name.endswith((".wq.weight", ".wk.weight")):
            edited_weights[name] = layouts.reorder_pairs_to_halves(
                edited_weights[name],
                int(config["num_attention_heads" if "wq" in name else "num_key_value_heads"]),
            )
    return edited_weights


def permute_wrong_heads(weights: Weights, config: Config) -> Weights:
    """Permute k as if it had as many heads as q."""
    return {
        name: layouts.reorder_halves_to_pairs(value, int(config["num_attention_heads"]))
        if "k_proj" in name
        else value
        for name, value in weights.items()
    }


def shift_layers(weights: Weights, config: Config) -> Weights:
    """Put layer i + 1 in the place of layer i; the first in the place of the last."""
    count = int(config["num_hidden_layers"])

    def get_source(name: str) -> str:
        for layer in range(count):
            if f".layers.{layer}." in name:
                return name.replace(f".layers.{layer}.", f".layers.{(layer + 1) % count}.")
        return name

    return {name: weights[get_source(name)] for name in weights}


def roll_rows(rows: np.ndarray) -> np.ndarray:
    return np.roll(rows, 1, axis=0)


def swap_heads(rows: np.ndarray) -> np.ndarray:
    """Exchange two of eight heads."""
    heads = rows.reshape(8, -1, *rows.shape[1:])
    return heads[[0, 5, 2, 3, 4, 1, 6, 7]].reshape(rows.shape)


def fill_rows(value: float, rows: slice) -> Callable[[np.ndarray], np.ndarray]:
    def change(matrix: np.ndarray) -> np.ndarray:
        matrix[rows] = value
        return matrix

    return change


def swap_column_shards(matrix: np.ndarray) -> np.ndarray:
    """Join two shards of a row-parallel layer in the wrong order."""
    return np.concatenate(np.split(matrix, 2, axis=1)[::-1], axis=1)


def insert_nan(matrix: np.ndarray) -> np.ndarray:
    matrix[3, 5] = np.nan
    return matrix


def concatenate_qkv(q: np.ndarray, k: np.ndarray, v: np.ndarray, groups: int) -> np.ndarray:
    return np.concatenate([q, k, v])


def arrange_kqv(q: np.ndarray, k: np.ndarray, v: np.ndarray, groups: int) -> np.ndarray:
    return layouts.fuse_qkv_by_group(k, q, v, groups)


def concatenate_up_gate(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return np.concatenate([up, gate])


def concatenate_chunks(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Join two shards of [gate; up] without splitting them first."""
    return np.concatenate(
        [part for pair in zip(np.split(gate, 2), np.split(up, 2), strict=True) for part in pair]
    )


def draw_random(matrix: np.ndarray) -> np.ndarray:
    return np.random.default_rng(3).normal(0, 0.02, matrix.shape).astype(np.float32)


def drop_tensor(name: str) -> Callable[[Weights, Config], Weights]:
    return lambda weights, config: {n: v for n, v in weights.items() if name not in n}


def tie_head(weights: Weights, config: Config) -> Weights:
    return {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}


def make_mcore(**options: object) -> Callable[[Weights, Config], Weights]:
    return lambda weights, config: layouts.convert_to_mcore(weights, config, **options)


_Q1, _O1, _K1 = (f"model__layers__1__self_attn__{p}_proj__weight" for p in "qok")
_EMBEDDING = "model__embed_tokens__weight"
_QKV = tuple(f"layers.*.attention.{part}.weight" for part in "qkv")
_FC1 = ("layers.*.mlp.gate_proj.weight", "layers.*.mlp.up_proj.weight")

CASES = (
    Case(
        "gate and up exchanged",
        "llama",
        exchange_tensors("gate_proj", "up_proj"),
        "swapped",
        ("layers.*.mlp.gate_proj.weight", "layers.*.mlp.up_proj.weight"),
        holds="layers.0.mlp.up_proj.weight",
    ),
    Case(
        "q and o exchanged",
        "llama",
        exchange_tensors("q_proj", "o_proj"),
        "swapped",
        ("layers.*.attention.q.weight", "layers.*.attention.out.weight"),
    ),
    Case(
        "k and v exchanged",
        "llama",
        exchange_tensors("k_proj", "v_proj"),
        "swapped",
        ("layers.*.attention.k.weight", "layers.*.attention.v.weight"),
    ),
    Case(
        "norms exchanged",
        "llama",
        exchange_tensors("input_layernorm", "post_attention_layernorm"),
        "swapped",
        ("layers.*.input_norm.weight", "layers.*.post_attention_norm.weight"),
    ),
    Case(
        "o_proj transposed",
        "llama",
        change_everywhere("o_proj", lambda w: w.T),
        "transposed",
        ("layers.*.attention.out.weight",),
    ),
    Case(
        "down_proj transposed, then reshaped",
        "llama",
        change_everywhere("down_proj", lambda w: w.T.reshape(w.shape)),
        "transposed",
        ("layers.*.mlp.down_proj.weight",),
    ),
    Case(
        "RoPE permutation missing",
        "llama",
        undo_rope_permutation,
        "rope",
        ("layers.*.attention.q.weight", "layers.*.attention.k.weight"),
        message_part="pairs",
    ),
    Case(
        "RoPE permutation with the wrong number of heads",
        "llama",
        permute_wrong_heads,
        "rope",
        ("layers.*.attention.k.weight",),
        message_part="8 heads",
    ),
    Case("layers off by one", "llama", shift_layers, "swapped", ("layers.*",)),
    Case(
        "heads exchanged",
        "llama",
        edit_tensors(**{_Q1: swap_heads}),
        "blocks-permuted",
        ("layers.1.attention.q.weight",),
        message_part="2 of 8 blocks of 8 rows",
    ),
    Case(
        "shards of rows in the wrong order",
        "llama",
        edit_tensors(**{_K1: lambda w: np.concatenate(np.split(w, 2)[::-1])}),
        "blocks-permuted",
        ("layers.1.attention.k.weight",),
    ),
    Case(
        "shards of columns in the wrong order",
        "llama",
        change_everywhere("o_proj", swap_column_shards),
        "columns-permuted",
        ("layers.*.attention.out.weight",),
    ),
    Case(
        "first shard of columns twice",
        "llama",
        edit_tensors(**{_O1: lambda w: np.concatenate([w[:, :32], w[:, :32]], axis=1)}),
        "columns-wrong",
        ("layers.1.attention.out.weight",),
    ),
    Case(
        "embedding shifted by one row",
        "llama",
        edit_tensors(**{_EMBEDDING: roll_rows}),
        "rows-shifted",
        ("embedding.weight",),
    ),
    Case(
        "embedding scaled by the root of its width",
        "llama",
        edit_tensors(**{_EMBEDDING: lambda w: 8 * w}),
        "scaled",
        ("embedding.weight",),
        message_part="square root of 64",
    ),
    Case(
        "sign lost",
        "llama",
        edit_tensors(**{_Q1: np.negative}),
        "sign",
        ("layers.1.attention.q.weight",),
    ),
    Case(
        "never loaded: zeros",
        "llama",
        change_everywhere("layers.2.self_attn.k_proj", np.zeros_like),
        "zeros",
        ("layers.2.attention.k.weight",),
    ),
    Case(
        "never loaded: ones",
        "llama",
        change_everywhere("norm", np.ones_like),
        "constant",
        ("layers.*.input_norm.weight", "layers.*.post_attention_norm.weight", "final_norm.weight"),
    ),
    Case(
        "never loaded: drawn anew",
        "llama",
        change_everywhere("layers.3.mlp.up_proj", draw_random),
        "random",
        ("layers.3.mlp.up_proj.weight",),
        message_part="normal",
    ),
    Case(
        "norm kept as its distance from one",
        "llama",
        change_everywhere("input_layernorm", lambda w: w - 1),
        "offset",
        ("layers.*.input_norm.weight",),
        message_part="-1",
    ),
    Case(
        "some rows of zeros",
        "llama",
        edit_tensors(**{_K1: fill_rows(0, slice(16, 32))}),
        "rows-zero",
        ("layers.1.attention.k.weight",),
        message_part="16 to 31",
    ),
    Case(
        "one NaN",
        "llama",
        edit_tensors(**{_Q1: insert_nan}),
        "not-finite",
        ("layers.1.attention.q.weight",),
    ),
    Case(
        "head tied by mistake",
        "llama",
        tie_head,
        "swapped",
        ("head.weight",),
        holds="embedding.weight",
    ),
    Case("head lost", "llama", drop_tensor("lm_head"), "tied-head", ("head.weight",)),
    Case(
        "trained on",
        "llama",
        change_everywhere("layers.0.mlp", lambda w: w + 0.05 * draw_random(w)),
        "changed",
        ("layers.0.mlp.*",),
    ),
    Case(
        "norms trained on",
        "llama",
        change_everywhere("layernorm", lambda w: w + draw_random(w)),
        "changed",
        ("layers.*.input_norm.weight", "layers.*.post_attention_norm.weight"),
    ),
    Case(
        "qkv not by group",
        "llama",
        make_mcore(qkv=concatenate_qkv),
        "qkv-order",
        _QKV,
        "mcore",
        message_part="[q; k; v]",
    ),
    Case(
        "k before q",
        "llama",
        make_mcore(qkv=arrange_kqv),
        "qkv-order",
        _QKV,
        "mcore",
        message_part="[k; q; v]",
    ),
    Case(
        "q, k, v by head, though grouped",
        "llama",
        make_mcore(qkv=lambda q, k, v, _: layouts.fuse_qkv_by_group(q, k, v, 2)),
        "qkv-order",
        _QKV,
        "mcore",
        message_part="2 groups",
    ),
    Case(
        "up before gate",
        "llama",
        make_mcore(gate_up=concatenate_up_gate),
        "gate-up-order",
        _FC1,
        "mcore",
        message_part="[up_proj; gate_proj]",
    ),
    Case(
        "gate and up in turns",
        "llama",
        make_mcore(gate_up=layouts.interleave_rows),
        "gate-up-order",
        _FC1,
        "mcore",
        message_part="row by row",
    ),
    Case(
        "shards of gate and up not taken apart",
        "llama",
        make_mcore(gate_up=concatenate_chunks),
        "gate-up-order",
        _FC1,
        "mcore",
        message_part="2 groups",
    ),
    Case(
        "RoPE in a fused weight",
        "llama",
        lambda w, c: layouts.convert_to_mcore(undo_rope_permutation(w, c), c),
        "rope",
        ("layers.*.attention.q.weight", "layers.*.attention.k.weight"),
        "mcore",
    ),
    Case(
        "Meta's names, but rows already in halves",
        "llama",
        rename_to_meta,
        "rope",
        ("layers.*.attention.q.weight", "layers.*.attention.k.weight"),
    ),
    Case(
        "two experts exchanged",
        "mixtral",
        exchange_tensors("experts.1.", "experts.2."),
        "swapped",
        ("layers.*.mlp.experts.1.*", "layers.*.mlp.experts.2.*"),
    ),
    Case(
        "rope rows of MLA reordered",
        "deepseek",
        change_everywhere(
            "kv_a_proj_with_mqa",
            lambda w: np.concatenate([w[:24], layouts.reorder_halves_to_pairs(w[24:], 1)]),
        ),
        "rope",
        ("layers.*.attention.kv_a.weight",),
        message_part="8 rows",
    ),
    Case(
        "router transposed in memory",
        "mixtral",
        change_everywhere(".gate.weight", lambda w: w.T.reshape(w.shape)),
        "transposed",
        ("layers.*.mlp.router.weight",),
    ),
)
