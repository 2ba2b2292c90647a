"""Cost of recording one training step: ``dumpdiff.record`` next to msprobe, in one run, on CPU.

    python benchmarks/recorder.py --repeat 5

needs torch and mindstudio-probe. Every recorder runs in a process of its own and records the same
steps of the same model; the first step, which warms up, does not count. Printed are the time of a
step beyond one that is not recorded, the median of the repetitions, and the bytes on disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "fixtures"))

RECORDERS = ("none", "dumpdiff", "msprobe-L1", "msprobe-mix")
N_STEPS = 4  #: the first is not measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--only", choices=RECORDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(*measure_steps(args.only, args.width, args.layers))
        return
    seconds: dict[str, list[float]] = {name: [] for name in RECORDERS}
    sizes: dict[str, float] = {}
    for _ in range(args.repeat):
        for name in RECORDERS:  # in turn, so that the load of the machine is the same for all
            command = [sys.executable, __file__, "--only", name, "--width", str(args.width),
                       "--layers", str(args.layers)]  # fmt: skip
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            step_seconds, size = map(float, output.split()[-2:])
            seconds[name].append(step_seconds)
            sizes[name] = size
    plain = statistics.median(seconds["none"])
    print("| recorder | s per step | beyond an unrecorded step | bytes per step |")
    print("|---|--:|--:|--:|")
    for name in RECORDERS:
        median = statistics.median(seconds[name])
        print(f"| {name} | {median:.3f} | {median - plain:.3f} | {sizes[name]:,.0f} |")


def measure_steps(recorder: str, width: int, n_layers: int) -> tuple[float, float]:
    """Return the CPU seconds of a step, the median, and the bytes that were written for one."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = build_model(width, n_layers)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(1000, (4, 129))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_step = make_recorded_step(recorder, folder, model)
        seconds = []
        for _ in range(N_STEPS):
            start = time.process_time()
            run_step(lambda: train_step(model, optimizer, tokens))
            seconds.append(time.process_time() - start)
        n_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return statistics.median(seconds[1:]), n_bytes / N_STEPS


def build_model(width: int, n_layers: int):
    """Return an encoder of PyTorch with an embedding and a head."""
    from torch import nn

    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.Embedding(1000, width), nn.TransformerEncoder(layer, n_layers), nn.Linear(width, 1000)
    )


def train_step(model, optimizer, tokens) -> None:
    """Run one step of training."""
    from torch.nn import functional

    loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def make_recorded_step(recorder: str, folder: Path, model) -> Callable[[Callable[[], None]], None]:
    """Return a function that runs a step recorded."""
    if recorder.startswith("msprobe"):
        from msprobe.pytorch import PrecisionDebugger
        from msprobe_config import write_config

        level = recorder.rpartition("-")[2]
        config = write_config(folder, "statistics", level)
        config.write_text(json.dumps({**json.loads(config.read_text()), "step": []}))  # all steps
        debugger = PrecisionDebugger(config_path=str(config))

        def run_msprobe(step: Callable[[], None]) -> None:
            debugger.start(model=model)
            step()
            debugger.stop()
            debugger.step()

        return run_msprobe
    recording = nullcontext()
    if recorder == "dumpdiff":
        import dumpdiff

        recording = dumpdiff.record(model, folder / "dump")

    def run(step: Callable[[], None]) -> None:
        with recording:
            step()

    return run


if __name__ == "__main__":
    main()
