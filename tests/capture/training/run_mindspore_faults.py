"""Run a chain of blocks in PyNative mode under msprobe, with faults in some.

    python run_mindspore_faults.py FOLDER

FOLDER/faults.json: the numbers of faulty blocks. FOLDER/graft_modules.py, if there is one, is
called. The dump goes into FOLDER/dump.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops

# Statistics use mint.norm, whose kernel CPU lacks; without the name, msprobe falls back to
# ops.norm, which works.
del mint.norm

from msprobe.mindspore import PrecisionDebugger, seed_all  # noqa: E402

N_BLOCKS, WIDTH = 6, 16


class Block(nn.Cell):
    """A residual block; a faulty one scales what it adds."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((WIDTH,))
        self.wide = nn.Dense(WIDTH, 2 * WIDTH)
        self.narrow = nn.Dense(2 * WIDTH, WIDTH)
        self.scale = scale

    def construct(self, x):
        return x + self.narrow(ops.tanh(self.wide(self.norm(x)))) * self.scale


class Net(nn.Cell):
    """All blocks, and a loss."""

    def __init__(self, faults: list[int]) -> None:
        super().__init__()
        self.blocks = nn.CellList(
            [Block(0.4 if number in faults else 0.5) for number in range(N_BLOCKS)]
        )

    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return ops.square(x).mean()


def run(folder: Path) -> None:
    os.chdir(folder)
    ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    seed_all(seed=3, mode=True)
    net = Net(json.loads((folder / "faults.json").read_text()))
    x = ms.Tensor(np.random.default_rng(3).normal(size=(4, WIDTH)).astype(np.float32))
    code = folder / "graft_modules.py"
    if code.exists():
        names: dict[str, object] = {}
        exec(code.read_text(), names)
        names["graft_modules"](net)
    config = folder / "config.json"
    tensor = {"scope": [], "list": [], "data_mode": ["all"]}
    settings = {"task": "tensor", "dump_path": str(folder / "dump"), "rank": [], "step": [0]}
    config.write_text(json.dumps({**settings, "level": "mix", "tensor": tensor}))
    debugger = PrecisionDebugger(config_path=str(config))
    debugger.start(net)
    ms.value_and_grad(net, None, net.trainable_params())(x)
    debugger.stop()
    debugger.step()


run(Path(sys.argv[1]).resolve())
