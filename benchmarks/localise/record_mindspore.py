"""Record one training step of a benchmark model in MindSpore's graph mode, on CPU.

    python benchmarks/localise/record_mindspore.py OUT --model llama --names legacy --fault eps@1

needs mindspore, whose built-in dump is used. Prints the loss and the dump folder (OUT holds
rank_0/NAME/0/0/*.npy, graphs and execution order). The path of OUT may only hold letters, digits,
'-', '_' and '/': MindSpore refuses others.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "fixtures"))

import mindspore as ms
from faults import add_options, parse_model
from mindspore import Tensor
from mindspore_dump import write_config
from mindspore_nets.decoder import TokenLoss
from mindspore_nets.optimizer import Update
from mindspore_nets.resnet import ClassLoss
from mindspore_nets.step import TrainStep, as_function
from mindspore_nets.style import NAMES, Style


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument(
        "--names", choices=list(NAMES), default="legacy", help="of MindSpore Transformers' cells"
    )
    parser.add_argument(
        "--style", choices=["cell", "jit"], default="cell", help="jit: a function on top, no scopes"
    )
    parser.add_argument(
        "--order", choices=["qkv", "vkq"], default="qkv", help="in which order the projections run"
    )
    parser.add_argument("--attention", choices=["plain", "bmm"], default="plain")
    parser.add_argument(
        "--recompute", action="store_true", help="each block again in the backward pass"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    model = parse_model(args)
    out = Path(args.out).resolve()
    out.mkdir(parents=True)
    write_config(out, model.name)
    os.chdir(out)  # where the framework leaves its own reports
    ms.set_device("CPU")
    ms.device_context.cpu.op_tuning.threads_num(1)
    ms.set_context(mode=ms.GRAPH_MODE)
    style = Style(NAMES[args.names], args.attention, args.order, args.recompute)
    loss = ClassLoss(model) if model.size.image else TokenLoss(model, style)
    loss.set_train()
    optimizer = Update(loss.trainable_params(), model.optimizer) if args.optimizer else None
    step = TrainStep(loss, optimizer) if args.style == "cell" else as_function(loss, optimizer)
    batch = model.images() if model.size.image else model.batch()
    value, _ = step(*(Tensor(part) for part in batch))
    print(f"loss {float(value.asnumpy()):.7f}\ndump {out}")


if __name__ == "__main__":
    main()
