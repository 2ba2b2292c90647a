"""``dumpdiff.record`` of MindSpore PyNative: it changes nothing, and what it writes aligns."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dumpdiff

ms = pytest.importorskip("mindspore")

WEIGHTS = ("first", "second")


class Net(ms.nn.Cell):  # type: ignore[misc, name-defined]
    def __init__(self, scale: float) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        for name in WEIGHTS:
            values = random.standard_normal((32, 32)).astype(np.float32)
            setattr(self, name, ms.Parameter(ms.Tensor(values), name=name))
        self.scale = scale

    def construct(self, x: Any) -> Any:
        h = ms.mint.nn.functional.silu(ms.ops.matmul(x, self.first))
        return ms.ops.matmul(h * self.scale, self.second).square().mean()


@pytest.fixture(autouse=True)
def use_pynative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where the framework leaves its own reports
    ms.set_context(mode=ms.PYNATIVE_MODE)


def train(folder: Path | None, scale: float = 1.0, n_steps: int = 1) -> list[float]:
    net = Net(scale)
    optimizer = ms.nn.Momentum(net.trainable_params(), 0.1, 0.9)
    loss_and_gradients = ms.value_and_grad(net, None, optimizer.parameters)
    random = np.random.default_rng(1)
    losses = []
    with nullcontext() if folder is None else dumpdiff.record(net, folder):
        for _ in range(n_steps):
            batch = ms.Tensor(random.standard_normal((8, 32)).astype(np.float32))
            loss, gradients = loss_and_gradients(batch)
            optimizer(gradients)
            losses.append(float(loss.asnumpy()))
    return losses


def test_ten_losses_are_bit_identical_with_and_without(tmp_path: Path) -> None:
    assert train(tmp_path / "dump", n_steps=10) == train(None, n_steps=10)
    assert len(list((tmp_path / "dump").iterdir())) == 10
    assert "__call__" not in vars(ms.nn.Optimizer)


def test_operators_gradients_and_updates_are_recorded(tmp_path: Path) -> None:
    train(tmp_path / "dump")
    trace = dumpdiff.read(tmp_path / "dump")
    forward = trace.ops[trace.ops["phase"] == "forward"]
    assert "Primitive.SiLU" in set(forward["kind"])
    assert forward["source"].iat[0].startswith("test_mindspore.py:")
    backward = trace.ops[trace.ops["phase"] == "backward"]
    assert "Primitive.SiLUGrad" in set(backward["kind"])
    for column in ("parameter", "gradient_of", "update_of"):
        assert set(trace.tensors[column]) - {""} == set(WEIGHTS)


def test_clean_twins_align_and_a_fault_is_located(tmp_path: Path) -> None:
    for name, scale in (("reference", 1.0), ("twin", 1.0), ("faulty", 1.01)):
        train(tmp_path / name, scale)
    assert dumpdiff.align(tmp_path / "twin", tmp_path / "reference").verdict == "aligned"
    faulty = dumpdiff.align(tmp_path / "faulty", tmp_path / "reference")
    assert faulty.verdict == "diverged"
    finding = faulty.first_divergence
    assert finding is not None
    assert {"Primitive.Muls.2", "Primitive.MatMul.3"} & set(finding.target_ops)


def test_it_aligns_with_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    train(tmp_path / "mindspore")
    weights = {
        name: torch.nn.Parameter(torch.from_numpy(getattr(Net(1.0), name).asnumpy()))
        for name in WEIGHTS
    }

    class TorchNet(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            for name, weight in weights.items():
                self.register_parameter(name, weight)

        def forward(self, x: Any) -> Any:
            h = torch.nn.functional.silu(x @ self.first)
            return (h @ self.second).square().mean()

    model = TorchNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batch = np.random.default_rng(1).standard_normal((8, 32)).astype(np.float32)
    with dumpdiff.record(model, tmp_path / "pytorch"):
        model(torch.from_numpy(batch)).backward()
        optimizer.step()
    result = dumpdiff.align(tmp_path / "mindspore", tmp_path / "pytorch")
    assert result.verdict == "aligned"
