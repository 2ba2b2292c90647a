"""``--like``: what a configuration selects is counted in a dump that is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dumpdiff.capture import mindspore
from dumpdiff.capture.cost_from_dump import (
    ExpectedCost,
    estimate_mindspore_cost,
    estimate_msprobe_cost,
)
from dumpdiff.capture.msprobe import Options
from dumpdiff.model.errors import DumpError
from dumpdiff.model.trace import Trace


@pytest.fixture
def on_mindspore(trace: Callable[[str], Trace]) -> Callable[..., ExpectedCost]:
    def expected(like: str = "demo_mindspore", **asked: object) -> ExpectedCost:
        config = mindspore.build_configuration(
            mindspore.Options(path="/d", **asked), mindspore.Target()
        )
        return estimate_mindspore_cost(config, trace(like), like)

    return expected


@pytest.fixture
def on_msprobe(trace: Callable[[str], Trace]) -> Callable[..., ExpectedCost]:
    return lambda **asked: estimate_msprobe_cost(
        Options("/d", **asked), trace("demo_pytorch"), "demo_pytorch"
    )


def test_inputs_and_outputs_make_all(on_mindspore) -> None:
    both, inputs, outputs = (on_mindspore(input_output=which).step.tensors for which in (0, 1, 2))
    assert 0 < outputs < inputs < both == inputs + outputs


def test_kernels_select_as_mindspore_does(on_mindspore, trace: Callable[[str], Trace]) -> None:
    tensors = trace("demo_mindspore").tensors
    kinds = trace("demo_mindspore").ops["kind"].to_numpy()[tensors["op"]]
    products = int(((kinds == "BatchMatMul") | (kinds == "MatMul")).sum())
    assert on_mindspore(kernels=("matmul",)).step.tensors == products
    assert on_mindspore(kernels=("name-regex(.*/MatMul-op0)",)).step.tensors < products


def test_statistics_cost_a_row_and_full_costs_both(on_mindspore) -> None:
    statistics, tensors, full = (
        on_mindspore(saved_data=which).step.bytes for which in ("statistic", "tensor", "full")
    )
    assert statistics < tensors
    assert full == statistics + tensors


@pytest.mark.parametrize(("iteration", "steps"), [("0", 1), ("0|5-8", 5), ("all", None)])
def test_iterations_are_counted(on_mindspore, iteration: str, steps: int | None) -> None:
    assert on_mindspore(iteration=iteration).steps == steps


def test_kernels_cannot_be_counted_in_a_dump_of_pytorch(on_mindspore) -> None:
    found = on_mindspore("demo_pytorch", kernels=("MatMul",))
    assert found.notes == (
        "demo_pytorch is not a dump of MindSpore: kernels is ignored, every op counts",
    )
    assert found.step == on_mindspore("demo_pytorch").step


def test_msprobe_selects_by_part_of_a_name_and_by_pass(on_msprobe) -> None:
    everything = on_msprobe(task="tensor").step.tensors
    forward, backward = (
        on_msprobe(task="tensor", data_mode=(mode,)).step.tensors
        for mode in ("forward", "backward")
    )
    linear = on_msprobe(task="tensor", names=("Functional.linear",)).step.tensors
    assert forward + backward == everything
    assert 0 < linear < forward


def test_a_tensor_list_costs_its_tensors_beside_all_statistics(on_msprobe) -> None:
    statistics, some, everything = (
        on_msprobe(**asked).step for asked in ({}, {"tensor_list": ("linear",)}, {"task": "tensor"})
    )
    assert statistics.tensors == some.tensors == everything.tensors
    assert statistics.bytes < some.bytes < everything.bytes


def test_it_says_the_cost_of_a_step_and_of_all_steps(on_msprobe) -> None:
    text = str(on_msprobe(steps=("0-9",)))
    assert text.startswith("based on demo_pytorch: 786 tensors, ")
    assert "per step and rank; 10 steps: 7,860 tensors, " in text


def test_kernels_that_select_nothing_are_an_error_with_the_nearest_names(on_mindspore) -> None:
    with pytest.raises(DumpError, match="kernels 'MatMull' selects nothing in demo_mindspore"):
        on_mindspore(kernels=("MatMull",))
    with pytest.raises(DumpError, match="; the nearest names are Default/"):
        on_mindspore(kernels=("MatMul", "Default/network-WithLoss/MatMul-op999"))


def test_samples_are_the_head_and_the_tail_of_each_tensor(on_mindspore) -> None:
    """Both ends of five elements: at most ten of each tensor, and its header."""
    everything, samples = on_mindspore().step, on_mindspore(sample_num=5).step
    assert samples.tensors == everything.tensors
    assert samples.bytes <= samples.tensors * (128 + 10 * 8)
    assert samples.bytes < everything.bytes / 2
