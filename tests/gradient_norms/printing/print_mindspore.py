"""Print the small model's gradient norms as MindSpore's users do, and save the gradients.

Arguments: OUT SNIPPET_FOLDER FIXTURES. ``dump_local_norm`` works in a parallel run only, so its
output is printed here by the operator that it uses.
"""

from __future__ import annotations

import sys
from pathlib import Path

out, snippets, fixtures = map(Path, sys.argv[1:4])
sys.path[:0] = [str(snippets), str(fixtures)]

import mindspore as ms  # noqa: E402
import numpy as np  # noqa: E402
from mindspore import nn, ops  # noqa: E402
from mindspore_model import Llama, WithLoss  # noqa: E402
from model_spec import Size, clean  # noqa: E402
from snippet_local_norm import LocalNorms  # noqa: E402
from snippet_save_grads import SavedGradients  # noqa: E402

ms.set_device("CPU")
ms.set_context(mode=ms.GRAPH_MODE)
model = clean(Size(layers=2, hidden=32, ffn=88))


class Printed(nn.Cell):
    def __init__(self, cell):
        super().__init__(auto_prefix=False)
        self.reducer = cell.grad_reducer
        self.names = tuple(weight.name for weight in cell.weights)
        self.print = ops.Print()

    def construct(self, gradients):
        for name, gradient in zip(self.names, gradients):  # noqa: B905 graph mode knows no `strict`
            self.print("dump local norm: ", name, ops.sqrt(ops.reduce_sum(ops.square(gradient))))
        return self.reducer(gradients)


def train(use):
    network = WithLoss(Llama(model, ms.float32, "plain", "qkv"), model.loss_scale)
    cell = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), learning_rate=0.5))
    used = cell.grad_reducer = use(cell)
    return used, lambda: cell(*(ms.Tensor(ids) for ids in model.batch()))


norms, step = train(LocalNorms)
for _ in range(2):
    step()
    norms.show()
gradients, step = train(SavedGradients)
step()
gradients.save(str(out / "gradients"))
_, step = train(Printed)
step()
assert np.isfinite(norms.norms.asnumpy()).all()
