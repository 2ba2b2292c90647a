"""Record forward and backward pass of a family in MindSpore PyNative with msprobe, on CPU.

    python benchmarks/localise/families/record_mindspore_pynative.py OUT --model unet

needs mindspore and mindstudio-probe. Whole tensors, level mix. Prints the loss and the dump folder
(OUT holds step0/proc*/dump.json).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[3] / "fixtures"))

import mindspore as ms
from mindspore import Tensor, mint
from msprobe_config import write_config

import families
from families.arguments import parse_arguments

# Statistics use mint.norm, whose kernel CPU lacks; without the name, msprobe falls back to
# ops.norm, which works.
del mint.norm

from msprobe.mindspore import PrecisionDebugger  # noqa: E402


def main() -> None:
    args = parse_arguments(__doc__)
    model = families.build(args.model, args.fault, args.variant)
    out = Path(args.out).resolve()
    out.mkdir(parents=True)
    config = write_config(out, "tensor", "mix")
    os.chdir(out)  # where the framework leaves its own reports
    ms.set_device("CPU")
    ms.device_context.cpu.op_tuning.threads_num(1)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    network = families.import_net(args.model, "mindspore").build_loss(model)
    network.set_train()
    loss_and_gradients = ms.value_and_grad(network, None, network.trainable_params())
    batch = [Tensor(values) for values in model.batch()]

    debugger = PrecisionDebugger(config_path=str(config))
    debugger.start(network)
    loss, _ = loss_and_gradients(*batch)
    debugger.stop()
    debugger.step()
    print(f"loss {float(loss.asnumpy()):.7f}\ndump {out}")


if __name__ == "__main__":
    main()
