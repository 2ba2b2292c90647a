"""Run a chain of blocks in PyTorch under msprobe, with faults in some.

    python run_pytorch_faults.py FOLDER

FOLDER/faults.json: the numbers of faulty blocks. FOLDER/graft_modules.py, if there is one, is
called. The dump goes into FOLDER/dump.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger, seed_all
from torch import nn

N_BLOCKS, WIDTH = 6, 16


class Block(nn.Module):
    """A residual block; a faulty one scales what it adds."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 2 * WIDTH)
        self.narrow = nn.Linear(2 * WIDTH, WIDTH)
        self.scale = scale

    def forward(self, x):
        return x + self.narrow(torch.tanh(self.wide(self.norm(x)))) * self.scale


class Net(nn.Module):
    """All blocks, and a loss."""

    def __init__(self, faults: list[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            Block(0.4 if number in faults else 0.5) for number in range(N_BLOCKS)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return torch.square(x).mean()


def run(folder: Path) -> None:
    os.chdir(folder)
    seed_all(seed=3, mode=True)
    net = Net(json.loads((folder / "faults.json").read_text()))
    x = torch.randn(4, WIDTH)
    code = folder / "graft_modules.py"
    if code.exists():
        names: dict[str, object] = {}
        exec(code.read_text(), names)
        names["graft_modules"](net)
    debugger = PrecisionDebugger(
        dump_path=str(folder / "dump"), task="tensor", level="mix", step=[0]
    )
    debugger.start(model=net)
    net(x).backward()
    debugger.stop()
    debugger.step()


torch.set_num_threads(1)
run(Path(sys.argv[1]).resolve())
