"""Train a small network with every snippet in the folder given, and keep what they should have
done.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from dumpdiff.capture.mindspore import Options, Target, build_configuration, format_configuration

folder = Path(sys.argv[1])
config = build_configuration(Options(path=str(folder / "dump")), Target("cpu"))
(folder / "dump.json").write_text(format_configuration(config))
sys.path.insert(0, str(folder))

import mindspore as ms  # noqa: E402
import snippet_dump  # noqa: E402, F401
from mindspore import nn, ops  # noqa: E402
from snippet_load_grads import GiveGradients, GivenGradients  # noqa: E402
from snippet_local_norm import LocalNorms, ShowLocalNorms  # noqa: E402
from snippet_save_grads import SavedGradients, SaveGradients  # noqa: E402
from snippet_seed import fix_randomness  # noqa: E402

ms.set_device("CPU")
fix_randomness()


class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        ms.set_seed(7)
        self.first = nn.Dense(3, 4)
        self.second = nn.Dense(4, 2)

    def construct(self, x):
        return ops.square(self.second(ops.tanh(self.first(x)))).sum()


def draws() -> np.ndarray:
    ms.set_seed(7)
    return ops.uniform((4,), ms.Tensor(0.0), ms.Tensor(1.0), seed=None).asnumpy()


def training_cell() -> nn.TrainOneStepCell:
    network = Loss()
    return nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), learning_rate=0.5))


def keep(name: str, cell: nn.TrainOneStepCell) -> None:
    np.savez(folder / name, **{weight.name: weight.asnumpy() for weight in cell.weights})


def train(cell: nn.TrainOneStepCell, callback: ms.train.Callback) -> None:
    """Two steps by Model.train."""
    data = ms.dataset.NumpySlicesDataset({"x": [INPUT.asnumpy()] * 2}, shuffle=False)
    ms.train.Model(cell).train(1, data, callbacks=[callback], dataset_sink_mode=False)


INPUT = ms.Tensor(np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3))
np.save(folder / "draws.npy", np.stack([draws(), draws()]))

cell = training_cell()
keep("before.npz", cell)
gradients = cell.grad_reducer = SavedGradients(cell)
cell(INPUT)
gradients.save()
keep("after.npz", cell)

cell = training_cell()
norms = cell.grad_reducer = LocalNorms(cell)
for _ in range(2):
    cell(INPUT)
    norms.show()

saved = {file: np.load(file) for file in (folder / "gradients").iterdir()}
train(training_cell(), ShowLocalNorms())
train(training_cell(), SaveGradients())
assert all(np.allclose(np.load(file), values) for file, values in saved.items())

for file, values in saved.items():
    np.save(file, np.ones_like(values))
cell = training_cell()
cell.grad_reducer = GivenGradients(cell)
cell(INPUT)
keep("given.npz", cell)
again = training_cell()
train(again, GiveGradients())
assert not np.allclose(again.weights[0].asnumpy(), cell.weights[0].asnumpy())  # two steps, not one
np.save(folder / "gradients" / "first.bias.npy", np.ones(9))
try:
    GivenGradients(training_cell())
except ValueError as error:
    print(error)
for file, values in saved.items():
    np.save(file, values)
