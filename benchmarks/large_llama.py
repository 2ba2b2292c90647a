"""Write checkpoints of a Llama of any size, a few layers at a time: it may exceed the memory.

``python benchmarks/large_llama.py FOLDER KIND LAYERS`` where KIND is safetensors (bfloat16), copy
(the same in other files), wide (float32) or megatron (state dicts of Megatron-LM on two
tensor-parallel ranks). All hold the same weights: the layer's number is the seed of a layer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

# the tests' layouts of other frameworks are used
sys.path.insert(0, str(Path(__file__).parents[1]))

HIDDEN, FFN, HEADS, GROUPS, VOCABULARY = 2048, 5632, 16, 4, 32_000
SETTINGS = {
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}
_LAYER = HIDDEN * (2 * HIDDEN + 2 * GROUPS * (HIDDEN // HEADS) + 3 * FFN) * 2  #: bytes of bfloat16
_SHARD = 40  #: layers in one file: 3.5 GB

_KEY = GROUPS * HIDDEN // HEADS
_SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (_KEY, HIDDEN),
    "self_attn.v_proj": (_KEY, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (FFN, HIDDEN),
    "mlp.up_proj": (FFN, HIDDEN),
    "mlp.down_proj": (HIDDEN, FFN),
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
}
_OUTSIDE = {
    "model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,),
    "lm_head.weight": (VOCABULARY, HIDDEN),
}  # fmt: skip


def count_layers(gigabytes: float) -> int:
    """Return how many layers a model of this size has, at least two."""
    return max(2, round((gigabytes * 1e9 - 4 * VOCABULARY * HIDDEN) / _LAYER))


def _draw_weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float32).mul_(0.02).bfloat16()
        for name, shape in shapes.items()
    }


def _draw_layer(number: int) -> dict:
    return _draw_weights(
        {f"model.layers.{number}.{part}.weight": shape for part, shape in _SHAPES.items()},
        number + 1,
    )


def _write_safetensors(folder: Path, layers: int, wide: bool) -> None:
    from safetensors.torch import save_file

    index = {}
    for first in range(0, layers, _SHARD):
        shard = _draw_weights(_OUTSIDE, 0) if first == 0 else {}
        for number in range(first, min(layers, first + _SHARD)):
            shard |= _draw_layer(number)
        file = f"model-{first // _SHARD + 1:05d}.safetensors"
        save_file(
            {name: value.float() if wide else value for name, value in shard.items()}, folder / file
        )
        index |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps({**SETTINGS, "num_hidden_layers": layers}))


def _list_rank_weights(rank: int, layers: int) -> Iterator[tuple[str, object]]:
    """Return the weights of one of two tensor-parallel ranks, as the bits of bfloat16."""
    import torch

    from tests.weight_comparison import layouts

    outside = _draw_weights(_OUTSIDE, 0)
    for number in range(layers):
        layer_weights = _draw_layer(number)
        weights = layouts.convert_to_mcore(
            {n: v.view(torch.int16).numpy() for n, v in (outside | layer_weights).items()}, SETTINGS
        )
        layer_prefix = f"decoder.layers.{number}."
        rank_weights = {
            name: value
            for name, value in weights.items()
            if number == 0 or name.startswith(layer_prefix)
        }
        # copies: a view would keep the other rank's half in memory
        yield from (
            (name, value.copy())
            for name, value in layouts.shard_weights(rank_weights, 2, 1)[rank, 0].items()
        )


def write_checkpoint(folder: Path, kind: str, layers: int) -> None:
    """Write one checkpoint into a new folder."""
    if kind != "megatron":
        folder.mkdir()
        _write_safetensors(folder, layers, kind == "wide")
        return
    from tests.weight_comparison import layouts

    arguments = {
        "num_attention_heads": HEADS,
        "num_query_groups": GROUPS,
        "group_query_attention": True,
    }
    for rank in (0, 1):
        state = {(rank, 0): dict(_list_rank_weights(rank, layers))}
        layouts.save_megatron(
            folder, state, {**arguments, "pipeline_model_parallel_size": 1}, "bfloat16"
        )


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
