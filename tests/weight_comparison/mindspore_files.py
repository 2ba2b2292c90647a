"""Script: write checkpoints with MindSpore.

``python mindspore_files.py WEIGHTS.npz FOLDER``: FOLDER/model.ckpt and model.safetensors with the
arrays of WEIGHTS, and FOLDER/ranks: two devices, cut by MindSpore's own transform_checkpoints after
a strategy file of its own messages.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np


def main(weights: Path, folder: Path) -> None:
    import mindspore as ms

    arrays = dict(np.load(weights))
    saved = [
        {"name": name, "data": ms.Parameter(ms.Tensor(value), name=name)}
        for name, value in arrays.items()
    ]
    ms.save_checkpoint(saved, str(folder / "model.ckpt"), append_dict={"epoch_num": 3})
    ms.save_checkpoint(saved, str(folder / "model"), format="safetensors")

    source = folder / "whole" / "rank_0"
    source.mkdir(parents=True)
    ms.save_checkpoint(saved, str(source / "model0.ckpt"))
    strategy = folder / "strategy" / "ckpt_strategy_rank_0.ckpt"
    strategy.parent.mkdir()
    strategy.write_bytes(build_strategy(arrays))
    ms.transform_checkpoints(
        str(folder / "whole"), str(folder / "ranks"), "model", None, str(strategy)
    )


def build_strategy(arrays: dict[str, np.ndarray]) -> bytes:
    """Return a strategy for two devices: split all matrices as Megatron does, but not norms."""
    from mindspore.train import node_strategy_pb2 as messages

    strategy_map = messages.ParallelStrategyMap(current_stage=0)
    for name, value in arrays.items():
        item = strategy_map.parallel_layout_item.add(param_name=name)
        layout = item.parallel_layouts
        layout.dev_matrix.add().dim.extend([2])
        axes = [-1] * value.ndim
        if value.ndim == 2:
            axes[1 if re.search("linear_proj|linear_fc2", name) else 0] = 0
        layout.tensor_map.add().dim.extend(axes)
        cut = [
            length // (2 if axis == 0 else 1)
            for length, axis in zip(value.shape, axes, strict=True)
        ]
        layout.param_split_shape.add().dim.extend(cut)
        layout.indices_offset.add()
        layout.field, layout.opt_weight_shard_step, layout.opt_weight_shard_size = 0, 0, 0
    return strategy_map.SerializeToString()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
