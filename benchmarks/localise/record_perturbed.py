"""Record a model in PyTorch many times, each time with the result of one operator perturbed.

    python benchmarks/localise/record_perturbed.py OUT --model llama --operators 10 \\
        --by 1e-3 --by 1e-2

The operators are evenly spaced over the forward pass. OUT/0, OUT/1, ... hold one dump each: every
operator with every size of perturbation.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import record_pytorch
import torch
from faults import build
from msprobe.pytorch import PrecisionDebugger, seed_all
from msprobe_config import write_config
from pytorch.perturb import Perturbed
from pytorch.style import Style


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--names", default="hf")
    parser.add_argument("--operators", type=int, default=10)
    parser.add_argument(
        "--by",
        type=float,
        action="append",
        required=True,
        help="share of the norm; may be repeated",
    )
    args = parser.parse_args()

    seed_all(seed=1, mode=True)
    torch.set_num_threads(1)
    net, batch = record_pytorch.build_net_and_batch(build(args.model), Style(names=args.names))
    with Perturbed(-1, 0.0) as counter:
        net(*batch)
    last = counter.seen - 1
    numbers = [round(step * last / (args.operators - 1)) for step in range(args.operators)]
    points = [(number, size) for number in numbers for size in args.by]

    args.out.mkdir(parents=True)
    config = write_config(args.out.resolve(), "tensor", "mix")
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "step": list(range(len(points)))})
    )
    debugger = PrecisionDebugger(config_path=str(config))
    for step, (number, size) in enumerate(points):
        net.zero_grad()
        debugger.start(model=net)
        with Perturbed(number, size):
            loss = net(*batch)
        loss.backward()
        debugger.stop()
        debugger.step()
        folder = args.out / str(step)
        folder.mkdir()
        (args.out / f"step{step}").rename(folder / "step0")


if __name__ == "__main__":
    main()
