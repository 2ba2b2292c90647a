"""Record one training step of a benchmark model in PyTorch with msprobe: whole tensors, level mix.

    python benchmarks/localise/record_pytorch.py OUT --model llama --fault eps@1

needs torch and mindstudio-probe; runs on CPU. Prints the loss and the dump folder (OUT holds
step0/proc*/dump.json).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "fixtures"))

import torch
from architecture import Model
from faults import add_options, parse_model
from msprobe.pytorch import PrecisionDebugger, seed_all
from msprobe_config import write_config
from pytorch.decoder import Decoder
from pytorch.naming import names_of, rename
from pytorch.optimizer import optimizer_of, prepare_gradients
from pytorch.perturb import perturb
from pytorch.resnet import ResNet
from pytorch.style import Style
from torch import Tensor, nn


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument(
        "--names", choices=["hf", "mcore"], default="hf", help="Hugging Face or Megatron-core"
    )
    parser.add_argument(
        "--fused", choices=["none", "blocks"], default="none", help="q, k, v and gate, up as one"
    )
    parser.add_argument("--attention", choices=["plain", "sdpa"], default="plain")
    parser.add_argument("--order", choices=["qkv", "vkq"], default="qkv")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument(
        "--recompute", action="store_true", help="run each block again in the backward pass"
    )
    parser.add_argument(
        "--perturb",
        metavar="MODULE[:N]",
        help="the first (or N-th, from 0) operator in this module is off",
    )
    parser.add_argument(
        "--by", type=float, default=0.01, help="by this share of the norm of its output"
    )
    return parser.parse_args()


def build_net_and_batch(model: Model, style: Style) -> tuple[nn.Module, list[Tensor]]:
    """Return the network, with the parameter names of the family, and the inputs of its call."""
    if model.size.image:
        net, (images, labels) = ResNet(model), model.images()
        batch = [torch.from_numpy(images), torch.from_numpy(labels).long()]
    else:
        net, (tokens, labels, mask) = Decoder(model, style), model.batch()
        batch = [
            torch.from_numpy(tokens).long(),
            torch.from_numpy(labels).long(),
            torch.from_numpy(mask),
        ]
    rename(net, names_of(style.names, model.size))
    return net, batch


def main() -> None:
    args = parse_arguments()
    model = parse_model(args)
    out = Path(args.out).resolve()
    out.mkdir(parents=True)

    seed_all(seed=1, mode=True)
    torch.set_num_threads(1)
    net, batch = build_net_and_batch(
        model, Style(args.names, args.fused, args.attention, args.order, args.recompute)
    )
    if args.dtype == "bf16":
        net = net.to(torch.bfloat16)
    if args.perturb:
        perturb(net, args.perturb, args.by)
    optimizer = optimizer_of(net, model.optimizer)

    debugger = PrecisionDebugger(config_path=str(write_config(out, "tensor", "mix")))
    debugger.start(model=net)
    loss = net(*batch)
    loss.backward()
    if args.optimizer:
        prepare_gradients(net, model.optimizer)
        optimizer.step()
    debugger.stop()
    debugger.step()
    print(f"loss {loss.item():.7f}\ndump {out}")


if __name__ == "__main__":
    main()
