"""Record networks of entries, each in a child of one process that has the framework loaded.

    python benchmarks/operators/record.py pytorch WORK relu:0 relu:1:wide
    python benchmarks/operators/record.py mindspore WORK relu:0
    python benchmarks/operators/record.py mindspore_pynative WORK relu:0

PyTorch first: it writes the weights that MindSpore reads. PyTorch and PyNative are recorded by
msprobe, whole tensors, level mix. A folder without loss.txt has an error.txt.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "localise"), str(HERE.parents[1] / "fixtures")]

import numpy as np  # noqa: E402
from children import run_child  # noqa: E402
from nets import WIDE, draw_batch, draw_weights, import_net, write_net  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=["pytorch", "mindspore", "mindspore_pynative"])
    parser.add_argument("work", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    record = {
        "pytorch": load_pytorch,
        "mindspore": load_mindspore,
        "mindspore_pynative": load_pynative,
    }[args.framework]()
    if args.framework != "mindspore":
        with suppress(ImportError):  # msprobe imports it in every child, which takes seconds
            import megatron.core  # noqa: F401
    work = args.work.resolve()
    for name in args.names:
        folder = work / "recordings" / args.framework / name.replace(":", "-")
        if not any((folder / file).exists() for file in ("loss.txt", "error.txt")):
            run_child(lambda: run(record, args.framework, work, name, folder), folder)  # noqa: B023


def run(record, framework: str, work: Path, name: str, folder: Path) -> None:
    entry, form, *options = name.split(":")
    weights = work / "nets" / entry / ("wide.npz" if options else "weights.npz")
    library = framework.partition("_")[0]
    module = import_net(write_net(work / "nets" / entry, entry, library, int(form)))
    loss = record(module, entry, weights, folder)
    (folder / "loss.txt").write_text(f"{float(loss):.9g}\n")


def load_pytorch():
    import torch
    import torch.utils.checkpoint
    from msprobe.pytorch import PrecisionDebugger
    from msprobe_config import write_config

    torch.set_num_threads(1)

    def build(module, entry: str, path: Path):
        batch = {key: torch.from_numpy(value) for key, value in draw_batch(entry).items()}
        batch["i"] = batch["i"].long()
        sizes = []
        with torch.no_grad():
            probe = module.Net(0)
            probe.last = lambda rows: sizes.append(rows.shape[1]) or rows[:, :3]
            try:
                probe(**batch)
            except Exception:
                if not sizes:
                    raise
        net = module.Model(sizes[0] if sizes else 0)
        shapes = {key: tuple(value.shape) for key, value in net.named_parameters()}
        factor = WIDE if path.stem == "wide" else 1.0
        weights = draw_weights(entry, shapes, factor)
        for parameter, values in zip(net.parameters(), weights, strict=True):
            parameter.data = torch.from_numpy(values)
        np.savez(
            path, n_features=sizes[0] if sizes else 0, **{f"p{k}": w for k, w in enumerate(weights)}
        )
        return net, batch

    def record(module, entry: str, path: Path, folder: Path):
        net, batch = build(module, entry, path)
        debugger = PrecisionDebugger(config_path=str(write_config(folder, "tensor", "mix")))
        debugger.start(model=net)
        loss = net(*batch.values())
        loss.backward()
        debugger.stop()
        debugger.step()
        return loss.item()

    return record


def build_mindspore(module, entry: str, path: Path):
    from mindspore import Tensor

    arrays = np.load(path)
    net = module.Model(int(arrays["n_features"]))
    parameters = net.trainable_params()
    if len(parameters) != len(arrays) - 1:
        raise ValueError([(p.name, p.shape) for p in parameters])
    for number, parameter in enumerate(parameters):
        parameter.set_data(Tensor(arrays[f"p{number}"].reshape(parameter.shape)))
    net.set_train()
    return net, [Tensor(values) for values in draw_batch(entry).values()]


def load_mindspore():
    import mindspore as ms
    from mindspore_dump import write_config
    from mindspore_nets.step import TrainStep

    def record(module, entry: str, path: Path, folder: Path):
        write_config(folder, "Net")
        ms.set_device("CPU")
        ms.device_context.cpu.op_tuning.threads_num(1)
        ms.set_context(mode=ms.PYNATIVE_MODE)
        net, batch = build_mindspore(module, entry, path)
        ms.set_context(mode=ms.GRAPH_MODE)
        return TrainStep(net, None)(*batch)[0].asnumpy()

    return record


def load_pynative():
    import mindspore as ms
    from mindspore import mint
    from msprobe_config import write_config

    # see benchmarks/localise/record_mindspore_pynative.py
    del mint.norm
    from msprobe.mindspore import PrecisionDebugger

    def record(module, entry: str, path: Path, folder: Path):
        ms.set_device("CPU")
        ms.device_context.cpu.op_tuning.threads_num(1)
        ms.set_context(mode=ms.PYNATIVE_MODE)
        net, batch = build_mindspore(module, entry, path)
        loss_and_gradients = ms.value_and_grad(net, None, net.trainable_params())
        debugger = PrecisionDebugger(config_path=str(write_config(folder, "tensor", "mix")))
        debugger.start(net)
        loss, _ = loss_and_gradients(*batch)
        debugger.stop()
        debugger.step()
        return loss.asnumpy()

    return record


if __name__ == "__main__":
    main()
