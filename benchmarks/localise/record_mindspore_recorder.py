"""Record one training step of a benchmark model in MindSpore PyNative with ``dumpdiff.record``.

    python benchmarks/localise/record_mindspore_recorder.py OUT --model llama --fault eps@1

needs mindspore; runs on CPU. Whole tensors and sketches. Prints the loss and the dump folder.
"""

from __future__ import annotations

from pynative import build_step, parse_arguments, prepare_folder

import dumpdiff


def main() -> None:
    args = parse_arguments(__doc__)
    out = prepare_folder(args.out)
    network, step = build_step(args)
    with dumpdiff.record(network, out, tensors=True):
        loss = step()
    print(f"loss {float(loss.asnumpy()):.7f}\ndump {out}")


if __name__ == "__main__":
    main()
