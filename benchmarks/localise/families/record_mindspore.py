"""Record forward and backward pass of a family in MindSpore's graph mode, on CPU.

    python benchmarks/localise/families/record_mindspore.py OUT --model unet --fault group_count

needs mindspore, whose built-in dump is used. Prints the loss and the dump folder (OUT holds
rank_0/NAME/0/0/*.npy, graphs and execution order). The path of OUT may only hold letters, digits,
'-', '_' and '/': MindSpore refuses others.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[3] / "fixtures"))

import mindspore as ms
from mindspore import Tensor
from mindspore_dump import write_config
from mindspore_nets.optimizer import Update
from mindspore_nets.step import TrainStep

import families
from families.arguments import parse_arguments


def main() -> None:
    args = parse_arguments(__doc__)
    model = families.build(args.model, args.fault, args.variant)
    out = Path(args.out).resolve()
    out.mkdir(parents=True)
    write_config(out, model.name)
    os.chdir(out)  # where the framework leaves its own reports
    ms.set_device("CPU")
    ms.device_context.cpu.op_tuning.threads_num(1)
    ms.set_context(mode=ms.GRAPH_MODE)
    loss = families.import_net(args.model, "mindspore").build_loss(model)
    loss.set_train()
    update = Update(loss.trainable_params(), model.optimizer) if args.optimizer else None
    value, _ = TrainStep(loss, update)(*(Tensor(values) for values in model.batch()))
    print(f"loss {float(value.asnumpy()):.7f}\ndump {out}")


if __name__ == "__main__":
    main()
