"""Trains the small model three steps with every rule that MindSpore has: ``python record_mindspore.py FOLDER``.

Weights are written by ``save_checkpoint``, in turns as .ckpt and as safetensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
import small_model as model
from mindspore import Tensor, nn, ops

NAMES = {"norm.weight": "norm.gamma", "norm.bias": "norm.beta"}  #: as MindSpore calls them


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(model.INPUTS, model.HIDDEN)
        self.norm = nn.LayerNorm((model.HIDDEN,), epsilon=1e-5)
        self.gelu = nn.GELU(approximate=False)
        self.second = nn.Dense(model.HIDDEN, model.OUTPUTS)
        mine = {weight.name: weight for weight in self.trainable_params()}
        for name, array in model.weights().items():
            mine[NAMES.get(name, name)].set_data(Tensor(array))

    def construct(self, x: Tensor) -> Tensor:
        return self.second(self.gelu(self.norm(self.first(x))))


@dataclass(frozen=True)
class Run:
    make: Callable[[list[ms.Parameter]], nn.Cell]
    clip: float = 0.0
    moments: bool = False  #: saved with the weights, as a training step's checkpoint has them
    steps: int = model.STEPS


def split(weights: list[ms.Parameter], decay: float) -> list[dict[str, object]]:
    matrices = [weight for weight in weights if weight.name in model.MATRICES]
    others = [weight for weight in weights if weight.name not in model.MATRICES]
    return [
        {"params": matrices, "weight_decay": decay},
        {"params": others, "weight_decay": 0.0},
        {"order_params": weights},
    ]


RUNS = {
    "sgd": Run(lambda w: nn.SGD(w, learning_rate=0.1)),
    "sgd_nesterov": Run(lambda w: nn.SGD(w, learning_rate=0.1, momentum=0.9, nesterov=True)),
    "momentum": Run(lambda w: nn.Momentum(w, learning_rate=0.1, momentum=0.9)),
    "adam": Run(lambda w: nn.Adam(w, learning_rate=1e-3)),
    "adam_epsilon": Run(lambda w: nn.Adam(w, learning_rate=1e-3, eps=1e-5)),
    "adam_l2": Run(lambda w: nn.Adam(split(w, 0.02), learning_rate=1e-3)),
    "adam_weight_decay": Run(
        lambda w: nn.AdamWeightDecay(split(w, 0.01), learning_rate=1e-3, eps=1e-8)
    ),
    "adam_weight_decay_default": Run(
        lambda w: nn.AdamWeightDecay(w, learning_rate=1e-3, weight_decay=0.1), moments=True
    ),
    "adam_weight_decay_clipped": Run(
        lambda w: nn.AdamWeightDecay(w, learning_rate=1e-3, beta2=0.95, eps=1e-8), clip=0.9
    ),
    "adam_weight_decay_one_step": Run(
        lambda w: nn.AdamWeightDecay(w, learning_rate=1e-3, eps=1e-8), steps=1
    ),
    "experimental_adamw": Run(lambda w: ms.experimental.optim.AdamW(w, lr=1e-3, weight_decay=0.1)),
    "experimental_sgd": Run(
        lambda w: ms.experimental.optim.SGD(w, lr=0.1, momentum=0.9, weight_decay=0.01)
    ),
}


def record(run: Run, folder: Path, form: str) -> None:
    net = Net()
    weights = list(net.trainable_params())
    optimizer = run.make(weights)
    folder.mkdir(parents=True)
    losses = []

    def loss_of(inputs: Tensor, wanted: Tensor) -> Tensor:
        return ((net(inputs) - wanted) ** 2).mean()

    compute = ms.value_and_grad(loss_of, None, weights)

    def save(number: int) -> None:
        kept = list(weights) + ([*optimizer.moments1, *optimizer.moments2] if run.moments else [])
        listed = [{"name": weight.name, "data": Tensor(weight.asnumpy())} for weight in kept]
        ms.save_checkpoint(listed, str(folder / f"weights_{number}.{form}"), format=form)

    save(0)
    for step in range(run.steps):
        loss, gradients = compute(*map(Tensor, model.batch(step)))
        losses.append(float(loss.asnumpy()))
        named = {
            weight.name: gradient.asnumpy()
            for weight, gradient in zip(weights, gradients, strict=True)
        }
        model.save(folder, "gradients", step + 1, named)
        optimizer(ops.clip_by_global_norm(gradients, run.clip) if run.clip else gradients)
        save(step + 1)
    np.save(folder / "losses.npy", np.array(losses))


if __name__ == "__main__":
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    for at, (name, run) in enumerate(RUNS.items()):
        record(run, Path(sys.argv[1]) / name, ("ckpt", "safetensors")[at % 2])
