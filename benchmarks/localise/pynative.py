"""One training step of a benchmark model in MindSpore PyNative, for the scripts that record it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
from faults import add_options, parse_model
from mindspore import Tensor, nn
from mindspore_nets.decoder import TokenLoss
from mindspore_nets.optimizer import Update
from mindspore_nets.resnet import ClassLoss
from mindspore_nets.style import NAMES, Style


def parse_arguments(description: str) -> argparse.Namespace:
    """Return the command line of a recording script."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    add_options(parser)
    parser.add_argument(
        "--names", choices=list(NAMES), default="legacy", help="of MindSpore Transformers' cells"
    )
    return parser.parse_args()


def prepare_folder(name: str) -> Path:
    """Make the folder, go into it, where the framework leaves its own reports, and set it up."""
    out = Path(name).resolve()
    out.mkdir(parents=True)
    os.chdir(out)
    ms.set_device("CPU")
    ms.device_context.cpu.op_tuning.threads_num(1)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    return out


def build_step(args: argparse.Namespace) -> tuple[nn.Cell, Callable[[], Tensor]]:
    """Return the network with its loss, and the function that runs one step and gives the loss."""
    model = parse_model(args)
    style = Style(NAMES[args.names], "plain", "qkv", recompute=False)
    network = ClassLoss(model) if model.size.image else TokenLoss(model, style)
    network.set_train()
    weights = network.trainable_params()
    optimizer = Update(weights, model.optimizer) if args.optimizer else None
    loss_and_gradients = ms.value_and_grad(network, None, weights)
    batch = [Tensor(part) for part in (model.images() if model.size.image else model.batch())]

    def step() -> Tensor:
        loss, gradients = loss_and_gradients(*batch)
        if optimizer is not None:
            optimizer(gradients)
        return loss

    return network, step
