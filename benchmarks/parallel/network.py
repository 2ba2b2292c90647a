"""The model of the parallel benchmark in NumPy: sizes, full weights, batches and dropout masks.

A Llama-like decoder with grouped-query attention and biases after the two row-parallel layers, as
Megatron-LM lays it out. All recordings cut their shards from these weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

WEIGHT_SEED, BATCH_SEED, DROPOUT_SEED = 17, 18, 19
INIT_STD = 0.12  #: larger than usual, so that every layer has an effect on the loss


@dataclass(frozen=True)
class Network:
    """Sizes and training settings. ``experts`` 0 is a dense model."""

    layers: int = 4
    hidden: int = 32
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 64
    vocab: int = 96
    #: rows of the embedding on a rank are a multiple of this; the added rows are zero
    vocab_multiple: int = 1
    seq: int = 16
    batch: int = 4
    experts: int = 0
    top_k: int = 2
    tied: bool = True
    dropout: float = 0.0
    eps: float = 1e-5
    rotary_base: float = 10000.0
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip: float = 1.0

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def queries_per_group(self) -> int:
        return self.heads // self.kv_heads


NETWORKS = {
    "dense": Network(),
    "untied": Network(layers=3, tied=False),
    "moe": Network(layers=2, experts=4, tied=False),
    "dropout": Network(layers=2, dropout=0.1),
    "padded": Network(layers=2, vocab=92, vocab_multiple=4),
    # of the fixtures
    "tiny": Network(layers=2, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=32, seq=8, batch=2),
    "tiny_deep": Network(
        layers=4, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=32, seq=8, batch=2
    ),
    "tiny_padded": Network(
        layers=1, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=30, vocab_multiple=2, seq=8, batch=2
    ),
}


def get_network(name: str) -> Network:
    """Return the network of a name."""
    return replace(NETWORKS[name])


def build_weights(network: Network) -> dict[str, np.ndarray]:
    """Return the full weights by name, float32.

    ``qkv`` holds a block (queries, key, value) for each group of heads; ``fc1`` holds the gate
    above the up projection; ``experts.fc1`` and ``experts.fc2`` have the experts as first axis.
    """
    random = np.random.default_rng(WEIGHT_SEED)
    hidden, ffn = network.hidden, network.ffn

    def draw(*shape: int) -> np.ndarray:
        return (INIT_STD * random.standard_normal(shape)).astype(np.float32)

    def draw_norm() -> np.ndarray:
        return (1 + 0.1 * random.standard_normal(hidden)).astype(np.float32)

    block_rows = (network.queries_per_group + 2) * network.head_dim
    weights = {"embedding": draw(network.vocab, hidden)}
    for n in range(network.layers):
        layer = f"layers.{n}"
        weights[f"{layer}.input_norm"] = draw_norm()
        weights[f"{layer}.qkv"] = draw(network.kv_heads * block_rows, hidden)
        weights[f"{layer}.proj"] = draw(hidden, hidden)
        weights[f"{layer}.proj_bias"] = draw(hidden)
        weights[f"{layer}.post_norm"] = draw_norm()
        if network.experts:
            weights[f"{layer}.router"] = 5 * draw(network.experts, hidden)
            weights[f"{layer}.experts.fc1"] = draw(network.experts, 2 * ffn, hidden)
            weights[f"{layer}.experts.fc2"] = draw(network.experts, hidden, ffn)
        else:
            weights[f"{layer}.fc1"] = draw(2 * ffn, hidden)
            weights[f"{layer}.fc2"] = draw(hidden, ffn)
            weights[f"{layer}.fc2_bias"] = draw(hidden)
    weights["final_norm"] = draw_norm()
    if not network.tied:
        weights["output"] = draw(network.vocab, hidden)
    return weights


def build_batch(network: Network, step: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and labels of a step, each (batch, seq), int64."""
    random = np.random.default_rng((BATCH_SEED, step))
    ids = random.integers(0, network.vocab, (network.batch, network.seq + 1))
    ids[:, 2::2] = ids[:, 1:-1:2]  # something to learn: every second token is repeated
    return ids[:, :-1], ids[:, 1:]


def build_dropout_mask(network: Network, place: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return what a tensor of the whole model is multiplied by: 0 or 1 / (1 - p), float32."""
    seed = (DROPOUT_SEED, *place.encode())
    keep = np.random.default_rng(seed).random(shape) >= network.dropout
    return (keep / (1 - network.dropout)).astype(np.float32)


def build_rotary(network: Network, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return cosine and sine, each (positions, head_dim), float32; halves are rotated."""
    exponent = np.arange(0, network.head_dim, 2) / network.head_dim
    angle = np.outer(positions, network.rotary_base**-exponent)
    angle = np.concatenate([angle, angle], axis=1)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
