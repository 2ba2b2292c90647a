"""Run one step of a network of isolation_models under msprobe.

    python benchmarks/capture/record_isolation.py FOLDER MODEL [--faulty]

needs torch and mindstudio-probe. If FOLDER/graft_modules.py exists, its function is called with the
model. The dump goes into FOLDER/dump: whole tensors, level mix.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import isolation_models
import torch
from msprobe.pytorch import PrecisionDebugger, seed_all

SEED = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", choices=list(isolation_models.BY_NAME))
    parser.add_argument("--faulty", action="store_true")
    args = parser.parse_args()
    folder = args.folder.resolve()
    os.chdir(folder)
    torch.set_num_threads(1)
    seed_all(seed=SEED, mode=True)
    model = isolation_models.BY_NAME[args.model]
    network = model.build(model.faults if args.faulty else ())
    batch = model.make_batch()
    code = folder / "graft_modules.py"
    if code.exists():
        names: dict[str, object] = {}
        exec(code.read_text(), names)
        names["graft_modules"](network)
    debugger = PrecisionDebugger(
        dump_path=str(folder / "dump"), task="tensor", level="mix", step=[0]
    )
    debugger.start(model=network)
    network(batch).backward()
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    main()
