"""Dump the small model with msprobe, trained by AdamW: ``python record_msprobe.py FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import small_model
import torch
from msprobe.pytorch import PrecisionDebugger
from msprobe_config import write_config
from record_torch import Net

if __name__ == "__main__":
    output = Path(sys.argv[1])
    output.mkdir(parents=True)
    torch.set_num_threads(1)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1)
    config = write_config(output, "tensor", "mix")
    config.write_text(json.dumps({**json.loads(config.read_text()), "step": []}))  # every step
    debugger = PrecisionDebugger(config_path=str(config))
    for step in range(small_model.STEPS):
        inputs, targets = map(torch.from_numpy, small_model.draw_batch(step))
        optimizer.zero_grad()
        debugger.start(model=net)
        ((net(inputs) - targets) ** 2).mean().backward()
        debugger.stop()
        debugger.step()
        optimizer.step()
