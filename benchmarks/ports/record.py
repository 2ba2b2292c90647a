"""Record one training step of ports and originals, each in a child of one process.

    python benchmarks/ports/record.py pytorch WORK resnet resnet:epsilon
    python benchmarks/ports/record.py mindspore WORK resnet
    python benchmarks/ports/record.py mindspore_pynative WORK resnet

PyTorch first: it writes the weights that MindSpore reads. Whole tensors; graph mode by the built-in
dump, PyTorch and PyNative by msprobe, level mix. A fault is one of
benchmarks/architectures/model_faults.py. A folder without loss.txt has an error.txt.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE),
    *(str(HERE.parent / name) for name in ("localise", "architectures")),
    str(HERE.parents[1] / "fixtures"),
]

import numpy as np  # noqa: E402
from children import run_child  # noqa: E402
from entries import MINDSPORE, PYNATIVE, PYTORCH, Entry, read_entries  # noqa: E402

Recorder = Callable[[Entry, str, Path, Path], float]  # entry, fault, weights, folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=[PYTORCH, MINDSPORE, PYNATIVE])
    parser.add_argument("work", type=Path)
    parser.add_argument("--faults", type=int, help="of each model, at most; takes all by default")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    entries = read_entries()
    loaders = {PYTORCH: load_pytorch, MINDSPORE: load_mindspore, PYNATIVE: load_pynative}
    record = loaders[args.framework]()
    if args.framework != MINDSPORE:
        with suppress(ImportError):  # msprobe imports it in every child, which takes seconds
            import megatron.core  # noqa: F401
    for name in args.names:  # a child would import them again
        entries[name.partition(":")[0]].import_module(args.framework)
    recordings = args.work.resolve() / "recordings"
    n_recorded: Counter[str] = Counter()
    for name in args.names:
        entry_name, _, fault = name.partition(":")
        if args.faults is not None and n_recorded[entry_name] >= args.faults:
            continue
        folder = recordings / args.framework / name.replace(":", "-")
        if not any((folder / file).exists() for file in ("loss.txt", "error.txt")):
            entry = entries[entry_name]
            weights = recordings / PYTORCH / entry_name / "weights.npz"
            run_child(lambda: run(record, entry, fault, weights, folder), folder)  # noqa: B023
        n_recorded[entry_name] += (folder / "loss.txt").exists()


def run(record: Recorder, entry: Entry, fault: str, weights: Path, folder: Path) -> None:
    loss = record(entry, fault, weights, folder)
    (folder / "loss.txt").write_text(f"{loss:.9g}\n")


def load_pytorch() -> Recorder:
    import torch
    import torch.nn.functional as F
    import torch.utils.checkpoint
    from model_faults import FAULTS
    from model_weights import fill
    from msprobe.pytorch import PrecisionDebugger, seed_all
    from msprobe_config import write_config
    from torch import Tensor, nn

    torch.set_num_threads(1)

    def to_torch(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        tensor = torch.from_numpy(value)
        return tensor if tensor.is_floating_point() else tensor.long()

    def classify(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        logits = model(images)
        logits = getattr(logits, "logits", logits)
        return F.cross_entropy(logits[0] if isinstance(logits, tuple) else logits, labels)

    def take_own_loss(model: nn.Module, **batch: Any) -> Tensor:
        return model(**batch)[0]

    losses = {"classes": classify, "model": take_own_loss}

    def record(entry: Entry, fault: str, weights: Path, folder: Path) -> float:
        torch.manual_seed(7)
        model = entry.build(PYTORCH).train()
        fill(model)
        arrays = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
        if not fault:
            np.savez(weights, **arrays)
        batch = {key: to_torch(value) for key, value in entry.draw_batch().items()}
        if fault:
            (folder / "place.txt").write_text(FAULTS[fault].apply(model, batch))
        seed_all(seed=1, mode=True)
        debugger = PrecisionDebugger(config_path=str(write_config(folder, "tensor", "mix")))
        debugger.start(model=model)
        loss = losses[entry.loss](model, **batch)
        loss.backward()
        debugger.stop()
        debugger.step()
        return loss.item()

    return record


def build_mindspore(entry: Entry, weights: Path) -> tuple[Any, list[Any]]:
    """Return the port, which computes the loss, with the original's weights, and the batch."""
    from mindspore import Tensor
    from port_losses import LOSSES

    network = entry.build(MINDSPORE)
    for name, parameter in network.parameters_and_names():
        parameter.name = name  # a list of lists of cells has some names twice
    load_weights(network.trainable_params(), np.load(weights), entry)
    network.set_train()
    batch = entry.draw_batch()
    loss = LOSSES[entry.loss](network, batch)
    return loss, [Tensor(values) for values in batch.values() if isinstance(values, np.ndarray)]


def load_weights(parameters: Sequence[Any], weights: Any, entry: Entry) -> None:
    """Give each parameter the weight of its name, or else the next one of its shape.

    A name may lack the outer modules. Of one shape, names with the same three last parts are
    preferred. A shape counts without axes of length 1, which kernels of one
    axis have in MindSpore.
    """
    from mindspore import Tensor

    port_names = [translate(parameter.name, entry) for parameter in parameters]
    left = match_joints(dict(weights), port_names)
    unnamed = []
    for parameter, name in zip(parameters, port_names, strict=True):
        names = [key for key in left if key == name or key.endswith(f".{name}")]
        if len(names) == 1 and np.size(left[names[0]]) == parameter.size:
            parameter.set_data(Tensor(left.pop(names[0]).reshape(parameter.shape)))
        else:
            unnamed.append((parameter, name))
    by_shape = defaultdict(list)
    for name, values in left.items():
        by_shape[np.squeeze(values).shape].append((name, values))
    for parameter, port_name in unnamed:
        candidates = by_shape[tuple(n for n in parameter.shape if n != 1)]
        if not candidates:
            raise ValueError(f"no weight for {parameter.name} {parameter.shape}")
        is_alike = [name.split(".")[-3:] == port_name.split(".")[-3:] for name, _ in candidates]
        name, values = candidates.pop(is_alike.index(True) if any(is_alike) else 0)
        print(f"{parameter.name} is {name} by shape")
        parameter.set_data(Tensor(values.reshape(parameter.shape)))
    remaining = [name for pairs in by_shape.values() for name, _ in pairs]
    if any(not name.endswith("bias") for name in remaining):
        raise ValueError(f"weights of the original are left: {remaining}")
    print(f"the port has no {remaining}")


def match_joints(weights: dict[str, Any], port_names: Sequence[str]) -> dict[str, Any]:
    """Join or split the projections to queries, keys and values as the port has them."""
    parts = {}
    for name, values in weights.items():
        head, infix, tail = name.partition(".qkv.")
        if infix:
            thirds = np.split(values, 3)
            parts |= {f"{head}.{part}.{tail}": v for part, v in zip("qkv", thirds, strict=True)}
        head, infix, tail = name.partition(".q.")
        names = [f"{head}.{part}.{tail}" for part in "qkv"]
        if infix and all(part in weights for part in names):
            parts[f"{head}.qkv.{tail}"] = np.concatenate([weights[part] for part in names])

    def is_of_port(name: str) -> bool:
        return any(name == port or name.endswith(f".{port}") for port in port_names)

    kept = {name: values for name, values in parts.items() if is_of_port(name)}
    joined = {re.sub(r"\.[qkv]\.", ".qkv.", name) for name in kept}
    split = {name.replace(".qkv.", f".{part}.") for name in kept for part in "qkv"}
    return {name: v for name, v in weights.items() if name not in joined | split} | kept


def translate(name: str, entry: Entry) -> str:
    """Return the original's name of a parameter, as far as the usual names tell."""
    usual = {"embedding_table": "weight", "gamma": "weight", "beta": "bias"}
    head, dot, tail = name.rpartition(".")
    name = f"{head}{dot}{usual.get(tail, tail)}"
    for pattern, replacement in entry.names.items():
        name = re.sub(pattern, replacement, name)
    return name


def load_mindspore() -> Recorder:
    import mindspore as ms
    from mindspore_dump import write_config
    from mindspore_nets.step import TrainStep

    def record(entry: Entry, fault: str, weights: Path, folder: Path) -> float:
        write_config(folder, "Net")
        ms.set_device("CPU")
        ms.device_context.cpu.op_tuning.threads_num(1)
        ms.set_context(mode=ms.PYNATIVE_MODE)
        network, batch = build_mindspore(entry, weights)
        ms.set_context(mode=ms.GRAPH_MODE)
        return float(TrainStep(network, None)(*batch)[0].asnumpy())

    return record


def load_pynative() -> Recorder:
    import mindspore as ms
    from mindspore import mint
    from msprobe_config import write_config

    # see benchmarks/localise/record_mindspore_pynative.py
    del mint.norm
    from msprobe.mindspore import PrecisionDebugger

    def record(entry: Entry, fault: str, weights: Path, folder: Path) -> float:
        ms.set_device("CPU")
        ms.device_context.cpu.op_tuning.threads_num(1)
        ms.set_context(mode=ms.PYNATIVE_MODE)
        network, batch = build_mindspore(entry, weights)
        loss_and_gradients = ms.value_and_grad(network, None, network.trainable_params())
        debugger = PrecisionDebugger(config_path=str(write_config(folder, "tensor", "mix")))
        debugger.start(network)
        loss, _ = loss_and_gradients(*batch)
        debugger.stop()
        debugger.step()
        return float(loss.asnumpy())

    return record


if __name__ == "__main__":
    main()
