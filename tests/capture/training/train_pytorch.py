"""Train a small network with every snippet in the folder given, and keep what they should have
done.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

folder = Path(sys.argv[1])
everything = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
config = {
    "task": "statistics",
    "dump_path": str(folder / "dump"),
    "rank": [],
    "step": [0],
    "level": "L0",
}
(folder / "dump.json").write_text(json.dumps({**config, "statistics": everything}))
sys.path.insert(0, str(folder))

from snippet_load_grads import load_gradients  # noqa: E402
from snippet_local_norm import print_local_norms  # noqa: E402
from snippet_save_grads import save_gradients  # noqa: E402
from snippet_seed import fix_randomness  # noqa: E402


def draws() -> np.ndarray:
    fix_randomness()
    return torch.rand(4).numpy()


def network() -> torch.nn.Module:
    fix_randomness()
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def keep(name: str, model: torch.nn.Module) -> None:
    np.savez(
        folder / name,
        **{name: weight.detach().numpy() for name, weight in model.named_parameters()},
    )


def traced_step(model: torch.nn.Module, step) -> None:
    """One step with the lines of the snippet around it, each where it says."""
    before, start, stop = (folder / "snippet_dump.py").read_text().split("# in the loop,")
    lines: dict[str, object] = {"model": model}
    exec(f"{before}\n# {start}", lines)
    step()
    exec(f"# {stop}", lines)


def train(model: torch.nn.Module, *between) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 15).reshape(5, 3)).square().sum().backward()
    for call in between:
        call(model)
    optimizer.step()


np.save(folder / "draws.npy", np.stack([draws(), draws()]))
model = network()
keep("before.npz", model)
traced_step(model, lambda: train(model, print_local_norms, save_gradients))
keep("after.npz", model)
train(torch.nn.DataParallel(model), print_local_norms)  # whose names begin with "module."

saved = {file: np.load(file) for file in (folder / "gradients").iterdir()}
for file, values in saved.items():
    np.save(file, np.ones_like(values))
model = network()
train(model, load_gradients)
keep("given.npz", model)
np.save(folder / "gradients" / "0.bias.npy", np.ones(9))
try:
    train(network(), load_gradients)
except ValueError as error:
    print(error)
for file, values in saved.items():
    np.save(file, values)
