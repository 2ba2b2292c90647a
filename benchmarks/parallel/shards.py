"""Cut the full weights into those of one rank; faults of loading are put in here."""

from __future__ import annotations

import numpy as np
from injections import Injection
from layouts import Layout
from network import Network, build_weights

#: Faults that change a weight while it is loaded: fault -> the weight, without its layer.
WEIGHT_FAULTS = {
    "shard_twice": "proj",
    "shards_swapped": "fc1",
    "stale_norm": "input_norm",
    "stale_weight": "fc2",
    "gate_up_swapped": "fc1",
    "expert_order": "experts.fc1",
    "qkv_not_grouped": "qkv",
}


def cut_weights(
    network: Network, layout: Layout, rank: int, injection: Injection, chunk: int = 0
) -> dict[str, np.ndarray]:
    """Return the weights of a model chunk of a rank; layers keep the numbers of the whole model."""
    place = layout.locate(rank)
    stage = chunk * layout.pp + place["pp"]
    local_weights = {}
    for name, values in build_weights(network).items():
        if not _is_on_stage(name, network, layout, stage):
            continue
        kind = name.split(".", 2)[2] if name.startswith("layers.") else name
        layer = int(name.split(".")[1]) if name.startswith("layers.") else -1
        tp_rank = place["tp"]
        is_faulty = WEIGHT_FAULTS.get(injection.name) == kind and injection.is_active(
            injection.name, rank, layer
        )
        if is_faulty and injection.name == "shard_twice":
            tp_rank = (tp_rank - 1) % layout.tp
        if is_faulty and injection.name == "shards_swapped":
            tp_rank = layout.tp - 1 - tp_rank
        if is_faulty and injection.name == "qkv_not_grouped":
            loaded_values = _sort_by_projection(values, network)
        else:
            loaded_values = values
        if kind in ("embedding", "output"):
            loaded_values = pad_vocabulary(loaded_values, network.vocab_multiple * layout.tp)
        local_values = cut_tensor(kind, loaded_values, layout.tp, tp_rank)
        if kind.startswith("experts.") and layout.ep > 1:
            local_values = np.split(local_values, layout.ep)[place["dp"]]
        if is_faulty:
            local_values = _change_weight(injection.name, local_values)
        local_weights[name] = np.ascontiguousarray(local_values)
    return local_weights


def cut_tensor(kind: str, values: np.ndarray, tp: int, tp_rank: int) -> np.ndarray:
    """Return the tensor-parallel shard of a weight, or of its gradient."""
    if kind in ("embedding", "output", "qkv"):
        return np.split(values, tp, axis=0)[tp_rank]
    if kind in ("proj", "fc2"):
        return np.split(values, tp, axis=1)[tp_rank]
    if kind == "fc1":
        halves = np.split(values, 2, axis=0)
        return np.concatenate([np.split(half, tp, axis=0)[tp_rank] for half in halves])
    return values


def pad_vocabulary(values: np.ndarray, multiple: int) -> np.ndarray:
    """Return the rows with zeros below them, as many as a multiple asks for."""
    n_rows = -len(values) % multiple
    return np.pad(values, ((0, n_rows), (0, 0)))


def list_stage_layers(network: Network, layout: Layout, stage: int) -> list[int]:
    """Return the layers of a pipeline stage, by their numbers in the whole model."""
    return [int(n) for n in np.array_split(np.arange(network.layers), layout.n_stages)[stage]]


def _is_on_stage(name: str, network: Network, layout: Layout, stage: int) -> bool:
    is_last = stage == layout.n_stages - 1
    if name == "embedding":
        return stage == 0 or (network.tied and is_last)
    if name in ("final_norm", "output"):
        return is_last
    return int(name.split(".")[1]) in list_stage_layers(network, layout, stage)


def _change_weight(fault: str, values: np.ndarray) -> np.ndarray:
    if fault in ("stale_norm", "stale_weight"):
        # A weight of an earlier step: each element is off by a small, different amount.
        noise = np.random.default_rng(1).standard_normal(values.shape)
        return (values + 0.02 * np.std(values) * noise).astype(np.float32)
    if fault == "gate_up_swapped":
        return np.concatenate(np.split(values, 2)[::-1])
    if fault == "expert_order":
        return values[::-1]
    return values


def _sort_by_projection(values: np.ndarray, network: Network) -> np.ndarray:
    """Return all queries, then all keys, then all values: the order of Hugging Face."""
    width = network.head_dim
    blocks = values.reshape(network.kv_heads, -1, width, values.shape[1])
    parts = (blocks[:, :-2], blocks[:, -2], blocks[:, -1])
    return np.concatenate([part.reshape(-1, values.shape[1]) for part in parts])
