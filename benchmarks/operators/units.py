"""Measure how exact the functions of both frameworks are on the CPU, forward and gradient.

    python benchmarks/operators/units.py

Every entry of ``entries.py`` that reads ``x`` only, in the form that is named like the function:
16,384 normal numbers with a deviation of 1, 3 and 8 in float32 against the same numbers in
PyTorch's float64. Printed are relative L2 errors in unit roundoffs, 2**-24, as the tolerance of
an operator counts them (``units`` in rules/tolerances.yaml).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from entries import ACTIVATIONS, POINTWISE
from mindspore import nn, ops

DEVIATIONS = (1, 3, 8)
SHAPE = (64, 256)
_ROUNDOFF = 2.0**-24
_OTHER_INPUTS = re.compile(r"\b[yzima]\b|;|\{")

Result = tuple[np.ndarray, np.ndarray]  # output, gradient of x


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    ms.set_device("CPU")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    random = np.random.default_rng(0)
    numbers, gradient = (random.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
    names = " | ".join(f"{deviation}" for deviation in DEVIATIONS)
    print(f"| function | framework | output: {names} | gradient: {names} |")
    print("|---|---|" + "--:|" * 2 * len(DEVIATIONS))
    for name, entry in {**ACTIVATIONS, **POINTWISE}.items():
        if _OTHER_INPUTS.search(entry.pytorch[0] + entry.mindspore[0]):
            continue
        for framework, compute, expression in (
            ("PyTorch", compute_pytorch, entry.pytorch[0]),
            ("MindSpore", compute_mindspore, entry.mindspore[0]),
        ):
            outputs, gradients = [], []
            for deviation in DEVIATIONS:
                x = numbers * np.float32(deviation)
                exact = compute_pytorch(entry.pytorch[0], x.astype(float), gradient.astype(float))
                measured = compute(expression, x, gradient)
                outputs.append(measure_units(measured[0], exact[0]))
                gradients.append(measure_units(measured[1], exact[1]))
            figures = " | ".join(f"{units:.1f}" for units in (*outputs, *gradients))
            print(f"| {name} | {framework} | {figures} |", flush=True)


def compute_pytorch(expression: str, x: np.ndarray, gradient: np.ndarray) -> Result:
    leaf = torch.tensor(x, requires_grad=True)
    output = eval(expression, {"torch": torch, "F": F, "x": leaf})
    output.backward(torch.tensor(gradient))
    return output.detach().numpy(), leaf.grad.numpy()


def compute_mindspore(expression: str, x: np.ndarray, gradient: np.ndarray) -> Result:
    function: Callable[[ms.Tensor], ms.Tensor]
    function = eval(f"lambda x: {expression}", {"ops": ops, "nn": nn, "ms": ms})
    product = ms.grad(lambda x: (function(x) * ms.Tensor(gradient)).sum())
    return function(ms.Tensor(x)).asnumpy(), product(ms.Tensor(x)).asnumpy()


def measure_units(values: np.ndarray, exact: np.ndarray) -> float:
    difference = np.linalg.norm(values.astype(float) - exact)
    return float(difference / np.linalg.norm(exact) / _ROUNDOFF)


if __name__ == "__main__":
    main()
