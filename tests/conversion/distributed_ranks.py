"""Script: one rank of Megatron-core loads a distributed checkpoint that was converted.

``python distributed_ranks.py PORT RANK COUNT DISTRIBUTED RANKS ...``: RANKS holds the same model as
DISTRIBUTED split over COUNT tensor-parallel ranks, a file for each. The rank's model loads its
share of DISTRIBUTED with Megatron-core's own loader, which must be what its file holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


def main(port: str, rank: int, n_ranks: int, folders: list[Path]) -> None:
    import torch
    from megatron.core import parallel_state

    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=n_ranks
    )
    parallel_state.initialize_model_parallel(n_ranks)
    for distributed, ranks in zip(folders[::2], folders[1::2], strict=True):
        file = ranks / "release" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"
        print(_load_share(distributed / "release", file))


def _load_share(distributed: Path, file: Path) -> int:
    """Return the number of parameters, all of which were loaded as in the file."""
    import torch
    from checkpoints import megatron_model
    from megatron.core import dist_checkpointing

    expected = torch.load(file, weights_only=False)
    model = megatron_model.build_model(expected["args"])
    state = dist_checkpointing.load(model.sharded_state_dict(), str(distributed))
    arguments = state.pop("args")
    assert arguments.num_layers == expected["args"].num_layers
    assert (state.pop("checkpoint_version"), state.pop("iteration")) == (3.0, 0)
    megatron_model.load_strictly(model, state)
    loaded = model.state_dict()
    weights = megatron_model.separate_norms(expected["model"])
    for name, value in weights.items():
        assert torch.equal(loaded[name], value), name
    return len(expected["model"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [Path(path) for path in sys.argv[4:]])
