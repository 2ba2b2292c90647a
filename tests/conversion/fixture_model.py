"""The MindSpore model of fixtures/, run as a script in its own process: the import takes seconds.

``python fixture_model.py save FOLDER`` writes FOLDER/model.ckpt and FOLDER/logits.npy. ``python
fixture_model.py load CHECKPOINT FOLDER`` writes FOLDER/loaded.npy, the logits with the weights of
a checkpoint, all of which must fit.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))


def main(command: str, *paths: str) -> None:
    import mindspore as ms
    from mindspore_model import Llama
    from model_spec import Size, clean

    model = clean(Size())
    net = Llama(model, ms.float32, "plain", "qkv")
    folder = Path(paths[-1])
    if command == "save":
        ms.save_checkpoint(net, str(folder / "model.ckpt"))
    else:
        saved = ms.load_checkpoint(paths[0], format=Path(paths[0]).suffix[1:])
        missing, unused = ms.load_param_into_net(net, saved, strict_load=True)
        assert (missing, unused) == ([], []), (missing, unused)
    tokens = ms.Tensor(model.batch()[0])
    np.save(folder / ("logits.npy" if command == "save" else "loaded.npy"), net(tokens).asnumpy())
    np.save(folder / "tokens.npy", tokens.asnumpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
