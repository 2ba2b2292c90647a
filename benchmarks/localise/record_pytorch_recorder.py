"""Record one training step of a benchmark model in PyTorch with ``dumpdiff.record``.

    python benchmarks/localise/record_pytorch_recorder.py OUT --model llama --fault eps@1

needs torch; runs on CPU. Whole tensors and sketches. Prints the loss and the dump folder.
"""

from __future__ import annotations

from pathlib import Path

import torch
from faults import parse_model
from pytorch.optimizer import optimizer_of, prepare_gradients
from pytorch.style import Style
from record_pytorch import build_net_and_batch, parse_arguments

import dumpdiff


def main() -> None:
    args = parse_arguments()
    model = parse_model(args)
    out = Path(args.out).resolve()
    out.mkdir(parents=True)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    style = Style(args.names, args.fused, args.attention, args.order, args.recompute)
    net, batch = build_net_and_batch(model, style)
    optimizer = optimizer_of(net, model.optimizer)
    with dumpdiff.record(net, out, tensors=True):
        loss = net(*batch)
        loss.backward()
        if args.optimizer:
            prepare_gradients(net, model.optimizer)
            optimizer.step()
    print(f"loss {loss.item():.7f}\ndump {out}")


if __name__ == "__main__":
    main()
