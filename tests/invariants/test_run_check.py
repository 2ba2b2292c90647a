"""What holds in every correct run, on real recordings of correct and faulty ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from parallel_runs import read_ranks

from dumpdiff.invariants import RunCheck, check_run
from dumpdiff.model.trace import Trace
from dumpdiff.rulebook import load_rules


def check(traces: dict[int, Trace]) -> RunCheck:
    return check_run("run", [(0, traces)], load_rules())


@pytest.mark.parametrize(
    ("name", "groups", "least_replicated"),
    [
        ("parallel_pt_tp2", ("tp 0,1",), 250),
        ("parallel_pt_tp2_again", ("tp 0,1",), 250),
        ("parallel_pt_tp2_dp2", ("tp 0,1", "dp 0,2", "dp 1,3", "tp 2,3"), 600),
        ("parallel_ms_tp2", ("tp 0,1",), 250),
    ],
)
def test_a_correct_run_has_no_violation(
    dump: Callable[[str], Path], name: str, groups: tuple[str, ...], least_replicated: int
) -> None:
    result = check(read_ranks(dump(name)))
    assert result.violations == ()
    assert result.verdict == "agree"
    assert result.groups == groups
    counts = {item.name: item.checked for item in result.checks}
    assert counts["replicated"] >= least_replicated
    assert counts["reduction"] >= 13
    assert counts["loss"] >= 1


def test_every_kind_of_collective_is_checked_on_whole_tensors(
    dump: Callable[[str], Path],
) -> None:
    result = check(read_ranks(dump("collectives")))
    counts = {item.name: item.checked for item in result.checks}
    assert {name: counts[name] for name in (
        "equal outputs", "reduction", "gathered", "scattered", "broadcast", "exchanged",
    )} == {
        "equal outputs": 10, "reduction": 6, "gathered": 9, "scattered": 8, "broadcast": 2,
        "exchanged": 8,
    }  # fmt: skip
    assert result.verdict == "agree"
    assert result.missing == (
        "received: 1 not checked: asynchronous: recorded before it was complete",
    )


@pytest.mark.parametrize(
    ("rank", "call", "foreign_rank", "foreign_call", "invariant"),
    [
        (2, "scatter.0.forward.output.0", 3, "scatter.0.forward.output.0", "scattered"),
        (1, "gather.0.forward.output.1.3", 2, "gather.0.forward.input.0", "gathered"),
    ],
)
def test_the_part_of_another_rank_is_found(
    dump: Callable[[str], Path],
    tmp_path: Path,
    rank: int,
    call: str,
    foreign_rank: int,
    foreign_call: str,
    invariant: str,
) -> None:
    shutil.copytree(dump("collectives"), tmp_path, dirs_exist_ok=True)
    tensors = "step0/rank{}/dump_tensor_data/Distributed.{}.pt"
    foreign = tmp_path / tensors.format(foreign_rank, foreign_call)
    shutil.copy(foreign, tmp_path / tensors.format(rank, call))
    first = check(read_ranks(tmp_path)).violations[0]
    assert (first.invariant, first.ranks) == (invariant, (rank,))


def test_a_missing_all_reduce_is_where_the_ranks_begin_to_differ(
    dump: Callable[[str], Path],
) -> None:
    result = check(read_ranks(dump("parallel_pt_tp2_not_reduced")))
    first = result.violations[0]
    assert first.invariant == "replicated"
    assert first.scope == "decoder.layers.0.mlp.linear_fc2"
    assert (first.ranks, first.group) == ((0, 1), "tp 0,1")
    assert result.verdict == "differ"


def test_another_epsilon_on_one_rank_is_named(dump: Callable[[str], Path]) -> None:
    result = check(read_ranks(dump("parallel_pt_tp2_norm_eps")))
    first = result.violations[0]
    assert first.scope == "decoder.layers.1.input_layernorm"
    assert (first.op, first.slot) == ("Tensor.__add__.8.forward", "input.1")
    assert "0.01 on rank 1" in first.message
    assert "1e-05 on rank 0" in first.message


def change(trace: Trace, row: int, **values: float) -> Trace:
    """Return a trace with other statistics of a tensor."""
    tensors = trace.tensors.copy()
    for name, value in values.items():
        tensors.loc[row, name] = value
    return replace(trace, tensors=tensors)


def find_row(trace: Trace, op: str, slot: str) -> int:
    number = trace.ops.index[trace.ops["name"] == op][0]
    rows = (trace.tensors["op"] == number) & (trace.tensors["slot"] == slot)
    return int(np.flatnonzero(rows)[0])


def test_a_stale_output_of_a_collective_names_the_rank(dump: Callable[[str], Path]) -> None:
    traces = read_ranks(dump("parallel_pt_tp2_dp2"))
    row = find_row(traces[3], "Distributed.all_reduce.3.forward", "output.0")
    traces[3] = change(traces[3], row, max=123.0)
    first = check(traces).violations[0]
    assert (first.invariant, first.group) == ("equal outputs", "tp 2,3")
    assert first.op == "Distributed.all_reduce.3.forward"


def test_a_sum_that_is_not_the_sum_of_its_inputs(dump: Callable[[str], Path]) -> None:
    traces = read_ranks(dump("parallel_pt_tp2"))
    for rank in (0, 1):
        row = find_row(traces[rank], "Distributed.all_reduce.1.forward", "output.0")
        mean = traces[rank].tensors["mean"].iat[row]
        traces[rank] = change(traces[rank], row, mean=2 * mean)
    names = [violation.invariant for violation in check(traces).violations]
    assert "reduction" in names


def test_a_replica_with_an_old_weight(dump: Callable[[str], Path]) -> None:
    traces = read_ranks(dump("parallel_pt_tp2_dp2"))
    tensors = traces[3].tensors.copy()
    is_weight = tensors["parameter"] == "decoder.layers.1.mlp.linear_fc2.weight"
    tensors.loc[is_weight, "norm"] *= 1.001
    traces[3] = replace(traces[3], tensors=tensors)
    first = check(traces).violations[0]
    assert first.invariant == "parameter"
    assert first.scope == "decoder.layers.1.mlp.linear_fc2.weight"
    assert first.group == "dp 1,3"
    assert "equal on these ranks in 1 other layers" in first.message


def test_values_that_are_no_numbers_name_the_first_op_of_each_rank(
    dump: Callable[[str], Path],
) -> None:
    traces = read_ranks(dump("parallel_pt_tp2"))
    tensors = traces[1].tensors.copy()
    row = find_row(traces[1], "Functional.silu.0.forward", "output.0")
    tensors.loc[row, ["max", "min", "mean", "norm"]] = np.nan
    tensors.loc[row, "nonfinite"] = 1
    traces[1] = replace(traces[1], tensors=tensors)
    violations = [item for item in check(traces).violations if item.invariant == "finite"]
    assert [(item.ranks, item.op) for item in violations] == [((1,), "Functional.silu.0.forward")]


def test_memory_that_is_only_viewed_is_no_value(dump: Callable[[str], Path]) -> None:
    """FSDP2 takes views of buffers before they are filled."""
    traces = read_ranks(dump("data_parallel_fsdp"))
    tensors = traces[0].tensors
    is_nan = (tensors["nonfinite"] == 1) & (tensors["slot_kind"] == "output")
    kinds = set(traces[0].ops["kind"].iloc[tensors["op"][is_nan]])
    assert any(kind.endswith("narrow") for kind in kinds)
    assert check(traces).violations == ()


@pytest.mark.parametrize("name", ["data_parallel_ddp_gradients", "data_parallel_fsdp"])
def test_gradients_that_are_reduced_without_a_record_are_not_compared(
    dump: Callable[[str], Path], name: str
) -> None:
    result = check(read_ranks(dump(name)))
    assert result.violations == ()
    (gradients,) = [item for item in result.checks if item.name == "gradient"]
    assert gradients.checked == 0
    assert sum(gradients.unchecked.values()) >= 10


def test_one_rank_alone_is_checked_for_what_it_can_show(dump: Callable[[str], Path]) -> None:
    traces = read_ranks(dump("parallel_pt_tp1"))
    result = check(traces)
    assert result.verdict == "agree"
    assert {item.name for item in result.checks if item.checked} == {"finite", "zero gradient"}


def test_a_step_begins_with_what_the_step_before_left(dump: Callable[[str], Path]) -> None:
    """The same step twice: the second one begins with the old parameters."""
    traces = read_ranks(dump("parallel_pt_tp2"))
    result = check_run("run", [(0, traces), (1, traces)], load_rules())
    violations = [item for item in result.violations if item.invariant == "next step"]
    assert {item.ranks for item in violations} == {(0,), (1,)}
    assert all(item.step == 1 for item in violations)
