"""Record one training step of a benchmark model in MindSpore PyNative with msprobe, on CPU.

    python benchmarks/localise/record_mindspore_pynative.py OUT --model llama --fault eps@1

needs mindspore and mindstudio-probe. Whole tensors, level mix. Prints the loss and the dump folder
(OUT holds step0/proc*/dump.json).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "fixtures"))

from mindspore import mint
from msprobe_config import write_config
from pynative import build_step, parse_arguments, prepare_folder

# Statistics use mint.norm, whose kernel CPU lacks; without the name, msprobe falls back to
# ops.norm, which works.
del mint.norm

from msprobe.mindspore import PrecisionDebugger  # noqa: E402


def main() -> None:
    args = parse_arguments(__doc__)
    out = prepare_folder(args.out)
    debugger = PrecisionDebugger(config_path=str(write_config(out, "tensor", "mix")))
    network, step = build_step(args)
    debugger.start(network)
    loss = step()
    debugger.stop()
    debugger.step()
    print(f"loss {float(loss.asnumpy()):.7f}\ndump {out}")


if __name__ == "__main__":
    main()
