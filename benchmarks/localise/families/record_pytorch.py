"""Record forward and backward pass of a family in PyTorch with msprobe: whole tensors, level mix.

    python benchmarks/localise/families/record_pytorch.py OUT --model unet --fault group_count

needs torch and mindstudio-probe; runs on CPU. Prints the loss and the dump folder (OUT holds
step0/proc*/dump.json).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[3] / "fixtures"))

import numpy as np
import torch
from msprobe.pytorch import PrecisionDebugger, seed_all
from msprobe_config import write_config
from pytorch.optimizer import optimizer_of, prepare_gradients
from torch import Tensor

import families
from families.arguments import parse_arguments


def main() -> None:
    args = parse_arguments(__doc__)
    model = families.build(args.model, args.fault, args.variant)
    out = Path(args.out).resolve()
    out.mkdir(parents=True)

    seed_all(seed=1, mode=True)
    torch.set_num_threads(1)
    loss_module = families.import_net(args.model, "pytorch").build_loss(model)
    batch = [convert_to_tensor(values) for values in model.batch()]
    optimizer = optimizer_of(loss_module, model.optimizer) if args.optimizer else None

    debugger = PrecisionDebugger(config_path=str(write_config(out, "tensor", "mix")))
    debugger.start(model=loss_module)
    loss = loss_module(*batch)
    loss.backward()
    if optimizer is not None:
        prepare_gradients(loss_module, model.optimizer)
        optimizer.step()
    debugger.stop()
    debugger.step()
    print(f"loss {loss.item():.7f}\ndump {out}")


def convert_to_tensor(values: np.ndarray) -> Tensor:
    """Return a tensor; integers are int64, as PyTorch's operators want indices."""
    tensor = torch.from_numpy(values)
    return tensor.long() if values.dtype == np.int32 else tensor


if __name__ == "__main__":
    main()
