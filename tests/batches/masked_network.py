"""Dump a small PyTorch network with learned positions, a masked loss and two micro-batches.

Usage: ``masked_network.py OUT``. OUT/dump is a dump of msprobe, OUT/given.npz contains the inputs
of step 0. In step 1 the labels are shifted twice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from msprobe.pytorch import PrecisionDebugger
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))
from msprobe_config import write_config

MICRO, SAMPLES, LENGTH, VOCABULARY, PAD = 2, 2, 12, 50, 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16)
        self.places = nn.Embedding(LENGTH, 16)
        self.head = nn.Linear(16, VOCABULARY, bias=False)

    def forward(self, tokens, labels, mask, positions):
        logits = self.head(torch.tanh(self.tokens(tokens) + self.places(positions)))
        losses = functional.cross_entropy(
            logits.view(-1, VOCABULARY), labels.view(-1), reduction="none"
        )
        return torch.sum(losses * mask.view(-1)) / mask.sum()


if __name__ == "__main__":
    out = Path(sys.argv[1])
    (out / "dump").mkdir(parents=True)
    torch.manual_seed(3)
    rng = np.random.default_rng(3)
    text = rng.integers(1, VOCABULARY, (MICRO * SAMPLES, LENGTH + 2))
    text[1::2, 9:] = PAD
    tokens, positions = (
        text[:, :LENGTH],
        np.broadcast_to(np.arange(LENGTH), (MICRO * SAMPLES, LENGTH)),
    )
    mask = (text[:, 1:-1] != PAD).astype(np.float32)
    np.savez(
        out / "given.npz", tokens=tokens, labels=text[:, 1:-1], loss_mask=mask, positions=positions
    )
    net = Net()
    config = write_config(out / "dump", "tensor", "mix")
    config.write_text(json.dumps({**json.loads(config.read_text()), "step": []}))  # every step
    debugger = PrecisionDebugger(config_path=str(config))
    for labels in (text[:, 1:-1], text[:, 2:]):
        debugger.start(model=net)
        for i in range(MICRO):
            samples = slice(i * SAMPLES, (i + 1) * SAMPLES)
            inputs = [array[samples].copy() for array in (tokens, labels, mask, positions)]
            net(*map(torch.from_numpy, inputs)).backward()
        debugger.stop()
        debugger.step()
