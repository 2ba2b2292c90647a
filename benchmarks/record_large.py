"""Record calls that read and write 4 MiB each with msprobe; 128 are 1 GiB of whole tensors.

    python benchmarks/record_large.py OUT [--noise 1e-7] [--calls 128]

The calls are a chain of layer norms with different weights, so that every tensor differs.
``--noise`` disturbs the first input, relative to its size, and the real operators propagate it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from msprobe.pytorch import PrecisionDebugger

CALLS, SIDE = 128, 1024  # SIDE * SIDE float32 are 4 MiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--calls", type=int, default=CALLS)
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    tensor_config = {"scope": [], "list": [], "data_mode": ["all"]}
    config = {
        "task": "tensor",
        "dump_path": str(args.out),
        "rank": [],
        "step": [0],
        "level": "L1",
        "tensor": tensor_config,
    }
    (args.out / "config.json").write_text(json.dumps(config))

    random = torch.Generator().manual_seed(0)
    x = torch.randn(SIDE, SIDE, generator=random)
    x = x * (1 + args.noise * torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(1)))
    scales = 1 + 0.3 * torch.randn(args.calls, SIDE, generator=random)
    shifts = 0.3 * torch.randn(args.calls, SIDE, generator=random)
    debugger = PrecisionDebugger(config_path=str(args.out / "config.json"))
    debugger.start()
    for scale, shift in zip(scales.unbind(), shifts.unbind(), strict=True):
        x = F.layer_norm(x, (SIDE,), scale, shift)
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    main()
