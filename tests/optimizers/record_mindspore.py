"""Train the small model with every rule of MindSpore: ``python record_mindspore.py FOLDER``.

Weights are written by ``save_checkpoint``, alternately as .ckpt and as safetensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
import small_model
from mindspore import Tensor, nn, ops

NAMES = {"norm.weight": "norm.gamma", "norm.bias": "norm.beta"}  #: name -> name in MindSpore


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(small_model.INPUTS, small_model.HIDDEN)
        self.norm = nn.LayerNorm((small_model.HIDDEN,), epsilon=1e-5)
        self.gelu = nn.GELU(approximate=False)
        self.second = nn.Dense(small_model.HIDDEN, small_model.OUTPUTS)
        parameters = {weight.name: weight for weight in self.trainable_params()}
        for name, array in small_model.draw_weights().items():
            parameters[NAMES.get(name, name)].set_data(Tensor(array))

    def construct(self, x: Tensor) -> Tensor:
        return self.second(self.gelu(self.norm(self.first(x))))


@dataclass(frozen=True)
class Run:
    make: Callable[[list[ms.Parameter]], nn.Cell]
    clip: float = 0.0
    moments: bool = False  #: saved with the weights, as in a checkpoint of training
    steps: int = small_model.STEPS


def split_parameters(weights: list[ms.Parameter], decay: float) -> list[dict[str, object]]:
    matrices = [weight for weight in weights if weight.name in small_model.MATRICES]
    vectors = [weight for weight in weights if weight.name not in small_model.MATRICES]
    return [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": 0.0},
        {"order_params": weights},
    ]


RUNS = {
    "sgd": Run(lambda w: nn.SGD(w, learning_rate=0.1)),
    "sgd_nesterov": Run(lambda w: nn.SGD(w, learning_rate=0.1, momentum=0.9, nesterov=True)),
    "momentum": Run(lambda w: nn.Momentum(w, learning_rate=0.1, momentum=0.9)),
    "adam": Run(lambda w: nn.Adam(w, learning_rate=1e-3)),
    "adam_epsilon": Run(lambda w: nn.Adam(w, learning_rate=1e-3, eps=1e-5)),
    "adam_l2": Run(lambda w: nn.Adam(split_parameters(w, 0.02), learning_rate=1e-3)),
    "adam_weight_decay": Run(
        lambda w: nn.AdamWeightDecay(split_parameters(w, 0.01), learning_rate=1e-3, eps=1e-8)
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
    "adafactor": Run(lambda w: nn.AdaFactor(w)),
    "adafactor_odd": Run(
        lambda w: nn.AdaFactor(
            w,
            learning_rate=1e-3,
            scale_parameter=False,
            relative_step=False,
            decay_rate=0.6,
            beta1=0.9,
            weight_decay=0.05,
        )
    ),
    "experimental_adamw": Run(lambda w: ms.experimental.optim.AdamW(w, lr=1e-3, weight_decay=0.1)),
    "experimental_sgd": Run(
        lambda w: ms.experimental.optim.SGD(w, lr=0.1, momentum=0.9, weight_decay=0.01)
    ),
}


def record_run(run: Run, folder: Path, form: str) -> None:
    net = Net()
    weights = list(net.trainable_params())
    optimizer = run.make(weights)
    folder.mkdir(parents=True)
    losses = []

    def compute_loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return ((net(inputs) - targets) ** 2).mean()

    compute = ms.value_and_grad(compute_loss, None, weights)

    def save_weights(number: int) -> None:
        saved_parameters = list(weights) + (
            [*optimizer.moments1, *optimizer.moments2] if run.moments else []
        )
        listed = [
            {"name": weight.name, "data": Tensor(weight.asnumpy())} for weight in saved_parameters
        ]
        ms.save_checkpoint(listed, str(folder / f"weights_{number}.{form}"), format=form)

    save_weights(0)
    for step in range(run.steps):
        loss, gradients = compute(*map(Tensor, small_model.draw_batch(step)))
        losses.append(float(loss.asnumpy()))
        named = {
            weight.name: gradient.asnumpy()
            for weight, gradient in zip(weights, gradients, strict=True)
        }
        small_model.save_arrays(folder, "gradients", step + 1, named)
        optimizer(ops.clip_by_global_norm(gradients, run.clip) if run.clip else gradients)
        save_weights(step + 1)
    np.save(folder / "losses.npy", np.array(losses))


if __name__ == "__main__":
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    for index, (name, run) in enumerate(RUNS.items()):
        record_run(run, Path(sys.argv[1]) / name, ("ckpt", "safetensors")[index % 2])
