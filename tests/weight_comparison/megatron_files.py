"""Script: write checkpoints with Megatron-core, one process per tensor-parallel rank.

``python megatron_files.py FOLDER PORT RANK RANKS``: a GPTModel on the CPU takes
FOLDER/shard_RANK.pt (strictly, so that names and shapes are exactly Megatron's), and saves
FOLDER/torch_dist with its own distributed checkpointing, which knows by itself what each rank
holds, and FOLDER/legacy as Megatron-LM's training script does.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

CONFIG = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "ffn_hidden_size": 176,
}


def main(folder: Path, port: str, rank: int, ranks: int) -> None:
    import torch

    torch.cuda.synchronize = lambda *_: None  # Megatron asks for a device even where there is none
    torch.cuda.current_device = lambda: "cpu"
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.strategies import torch as strategies
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel(ranks, 1)
    config = TransformerConfig(
        **CONFIG,
        use_cpu_initialization=True,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        bias_activation_fusion=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        tensor_model_parallel_size=ranks,
        sequence_parallel=False,
        pipeline_dtype=torch.float32,
    )
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=256,
        max_sequence_length=64,
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    )
    shard = torch.load(folder / f"shard_{rank}.pt", weights_only=True)
    missing, unexpected = model.load_state_dict(shard, strict=False)
    assert not unexpected, unexpected
    assert all("_extra_state" in name for name in missing), missing

    arguments = Namespace(
        **CONFIG, tensor_model_parallel_size=ranks, pipeline_model_parallel_size=1, swiglu=True
    )
    legacy = folder / "legacy" / "iter_0000001" / f"mp_rank_{rank:02d}"
    legacy.mkdir(parents=True, exist_ok=True)
    state = {
        "args": arguments,
        "checkpoint_version": 3.0,
        "model": model.state_dict_for_save_checkpoint(),
    }
    torch.save(state, legacy / "model_optim_rng.pt")
    distributed = folder / "torch_dist"
    distributed.mkdir(exist_ok=True)
    torch.distributed.barrier()
    strategy = strategies.TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
    dist_checkpointing.save(
        model.sharded_state_dict(), str(distributed), strategy, validate_access_integrity=False
    )
    torch.distributed.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
