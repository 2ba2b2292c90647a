"""Record one training step of tiny models of transformers, some with a fault.

    python benchmarks/architectures/record.py OUT llama:sdpa llama:eager llama:eager:epsilon

needs transformers, torch and mindstudio-probe. A name is a model of ``models.yaml``, its attention
(written out or fused) and a fault of ``model_faults.py`` or ``function_faults.py``. Each is
recorded with whole tensors in a copy of this process, whose output is in OUT/NAME.log. What a model
does not have is left out, with the reason in that file.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "fixtures")]

from function_faults import ALL_FAULTS as FAULTS  # noqa: E402
from model_weights import fill  # noqa: E402
from models import draw_batch, read_model  # noqa: E402
from msprobe.pytorch import PrecisionDebugger, seed_all  # noqa: E402
from msprobe_config import write_config  # noqa: E402


def build(name: str, attention: str) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model with weights of a usual size, and its batch; the same in every call."""
    class_name, config = read_model(name, attention)
    torch.manual_seed(7)
    model = getattr(transformers, class_name)(config)
    fill(model)
    return model.train(), draw_batch(name)


def record(out: Path, model_name: str, attention: str, fault: str = "") -> None:
    torch.set_num_threads(1)
    model, batch = build(model_name, attention)
    if fault:
        print(FAULTS[fault].apply(model, batch))
    seed_all(seed=1, mode=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    out.mkdir(parents=True)
    debugger = PrecisionDebugger(config_path=str(write_config(out, "tensor", "mix")))
    debugger.start(model=model)
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    debugger.stop()
    debugger.step()
    (out / "loss.txt").write_text(f"{loss.item():.8f}\n")


def main() -> None:
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    for name in sys.argv[2:]:
        if not (root / f"{name}.log").exists():
            process = os.fork()
            if process == 0:
                _record_and_exit(root, name)
            os.waitpid(process, 0)


def _record_and_exit(root: Path, name: str) -> None:
    log = os.open(root / f"{name}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        record(root / name, *name.split(":"))
    except Exception:  # the model has no such attention, or nothing to put the fault into
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
