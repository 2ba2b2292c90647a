"""The same training step in MindSpore's graph mode, with one mistake: see ../tutorial.md.

    python docs/tutorial/train_mindspore.py

Nothing here speaks of dumps: MindSpore reads MINDSPORE_DUMP_CONFIG.
"""

import sys
from pathlib import Path

import mindspore as ms

sys.path.insert(0, str(Path(__file__).parents[2] / "fixtures"))

import model_spec
from mindspore_model import Llama, WithLoss

ms.set_device("CPU")
ms.set_context(mode=ms.GRAPH_MODE)
spec = model_spec.build(model_spec.Size(), "rope_layout@1")
network = WithLoss(Llama(spec, ms.float32, "plain", "qkv"), loss_scale=1.0)
optimizer = ms.nn.Adam(network.trainable_params(), learning_rate=1e-3)
train = ms.nn.TrainOneStepCell(network, optimizer)
tokens, labels = (ms.Tensor(ids) for ids in spec.batch())
print(f"loss {float(train(tokens, labels)):.6f}")
