"""Script: MindSpore joins the ranks of a converted checkpoint.

``python mindspore_merge.py SOURCE FOLDER FORMAT``: SOURCE has ``rank_N`` folders and ``strategy``;
MindSpore's own transform_checkpoints makes one rank of them, and FOLDER/joined.npz holds it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def main(source: Path, folder: Path, kind: str) -> None:
    import mindspore as ms

    strategy = str(source / "strategy" / "ckpt_strategy.ckpt")
    ms.transform_checkpoints(
        str(source), str(folder / "joined"), "model", strategy, None, output_format=kind
    )
    (file,) = (folder / "joined" / "rank_0").iterdir()
    parameters = ms.load_checkpoint(str(file), format=kind)
    arrays = {name: parameter.asnumpy() for name, parameter in parameters.items()}
    np.savez(folder / "joined.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
