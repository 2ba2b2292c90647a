"""Script: load a converted checkpoint into Megatron-core, one rank after the other.

``python megatron_ranks.py FOLDER...``: for each rank of the sizes in its arguments a GPTModel is
built in a group of processes of which only this one exists, and its file is loaded strictly. Prints
the global numbers of layers and experts of each file, as Megatron-core gives them.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


def main(folders: list[Path]) -> None:
    print(json.dumps([_load_ranks(folder) for folder in folders]))


def _load_ranks(folder: Path) -> dict[str, Any]:
    """Return folder of a rank -> the layers of its stages, and its experts by layer."""
    import torch
    from checkpoints import megatron_model
    from megatron.core import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    first = next(folder.glob("release/mp_rank_*/model_optim_rng.pt"))
    arguments = torch.load(first, weights_only=False)["args"]
    n_expert_ranks = getattr(arguments, "expert_model_parallel_size", 1)
    n_shares = getattr(arguments, "expert_tensor_parallel_size", None)
    per_stage = max(arguments.tensor_model_parallel_size, n_expert_ranks * (n_shares or 1))
    if n_shares in (None, arguments.tensor_model_parallel_size):
        per_stage = arguments.tensor_model_parallel_size * n_expert_ranks
    n_ranks = per_stage * arguments.pipeline_model_parallel_size
    places = {}
    for rank in range(n_ranks):
        torch.distributed.init_process_group(
            "fake", rank=rank, world_size=n_ranks, store=FakeStore()
        )
        parallel_state.initialize_model_parallel(
            arguments.tensor_model_parallel_size,
            arguments.pipeline_model_parallel_size,
            getattr(arguments, "virtual_pipeline_model_parallel_size", None),
            expert_model_parallel_size=n_expert_ranks,
            expert_tensor_parallel_size=n_shares,
            create_gloo_process_groups=False,
        )
        place = _build_folder_name(parallel_state, arguments, n_expert_ranks)
        file = folder / "release" / place / "model_optim_rng.pt"
        places[place] = _load_chunks(megatron_model, torch.load(file, weights_only=False))
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    return places


def _build_folder_name(parallel_state: Any, arguments: Namespace, n_expert_ranks: int) -> str:
    """Return the folder as get_checkpoint_name of Megatron-LM's checkpointing.py does."""
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
    if arguments.pipeline_model_parallel_size > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
    if n_expert_ranks > 1:
        name += f"_{parallel_state.get_expert_model_parallel_rank():03d}"
    return name


def _load_chunks(megatron_model: Any, content: dict[str, Any]) -> dict[str, Any]:
    models = [content[key] for key in sorted(content) if key.startswith("model")]
    n_chunks = len(models)
    layers, experts = [], []
    for number, weights in enumerate(models):
        model = megatron_model.build_model(content["args"], number if n_chunks > 1 else None)
        megatron_model.load_strictly(model, weights)
        layers.append([layer.layer_number - 1 for layer in model.decoder.layers])
        mixtures = [
            layer.mlp for layer in model.decoder.layers if getattr(layer, "is_moe_layer", False)
        ]
        experts += [list(mixture.local_expert_indices) for mixture in mixtures]
    return {"layers": layers, "experts": experts}


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
