"""Relations between ranks that a rule file decides, on real recordings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dumpdiff.graph import build_flow
from dumpdiff.rulebook import RuleError, load_rules
from dumpdiff.sharding import Merged, RunOfRanks, merge_runs
from tests.parallel_runs import read_ranks

Dumps = Callable[[str], Path]
FC1_WEIGHT = "decoder.layers.#.mlp.linear_fc1.weight"
FC2_OUTPUT = "decoder.layers.#.mlp.linear_fc2: Functional.linear output.0"
REDUCED = "decoder.layers.#.mlp.linear_fc2: Distributed.all_reduce input.0"


@pytest.fixture
def merge(dump: Dumps, tmp_path: Path) -> Callable[..., Merged]:
    """``merge("parallel_pt_tp2", {FC1_WEIGHT: "local"})``: the ranks merged, with rules."""

    def merge_with_rules(name: str, relations: Mapping[str, str], side: str = "target") -> Merged:
        lines = [f'    "{kind}": {relation}\n' for kind, relation in relations.items()]
        file = tmp_path / "rules.yaml"
        file.write_text(f"relations:\n  {side}:\n{''.join(lines)}" if lines else "")
        runs = []
        for dump_name in (name, "parallel_pt_tp1"):
            traces = read_ranks(dump(dump_name))
            runs.append(RunOfRanks(tuple(traces), tuple(map(build_flow, traces.values()))))
        return merge_runs(*runs, load_rules([file]).relations)[0]

    return merge_with_rules


def get_relations(merged: Merged) -> dict[str, str]:
    return {row.name: row.relation for row in merged.layout}


def get_weight(merged: Merged) -> Any:
    """Return the first row of the weight of fc1."""
    tensors = merged.trace.tensors
    is_weight = tensors["parameter"] == FC1_WEIGHT.replace("#", "0")
    return tensors[is_weight].iloc[0]


def test_a_rule_decides_for_every_layer(merge: Callable[..., Merged]) -> None:
    found = get_relations(merge("parallel_pt_tp2", {}))
    ruled = get_relations(merge("parallel_pt_tp2", {FC1_WEIGHT: "replicated"}))
    assert found[FC1_WEIGHT] == "2 shards"
    assert ruled[FC1_WEIGHT] == "replicated"
    assert {name for name in found if found[name] != ruled[name]} == {FC1_WEIGHT}


def test_a_value_has_one_relation_wherever_it_is_read(merge: Callable[..., Merged]) -> None:
    ruled = get_relations(merge("parallel_pt_tp2", {FC2_OUTPUT: "local"}))
    assert ruled[FC2_OUTPUT] == "local to a rank"
    assert ruled[REDUCED] == "local to a rank"


def test_ranks_of_one_group_hold_the_same_shard(merge: Callable[..., Merged]) -> None:
    """Of two tensor- and two data-parallel ranks, each shard is on two."""
    found = get_weight(merge("parallel_pt_tp2_dp2", {}))
    rule = "{relation: concatenated, ranks: [[0, 2], [1, 3]]}"
    ruled = get_weight(merge("parallel_pt_tp2_dp2", {FC1_WEIGHT: rule}))
    assert (ruled["size"], ruled["norm"]) == (found["size"], found["norm"])
    each = get_weight(merge("parallel_pt_tp2_dp2", {FC1_WEIGHT: "concatenated"}))
    assert each["size"] == 2 * found["size"]


def test_an_axis_gives_the_shape_and_a_factor_the_numbers(merge: Callable[..., Merged]) -> None:
    found = get_weight(merge("parallel_pt_tp2", {}))
    rule = "{relation: concatenated, axis: 1, factor: 0.5}"
    ruled = get_weight(merge("parallel_pt_tp2", {FC1_WEIGHT: rule}))
    assert ruled["shape"] == (found["shape"][0] // 2, 2 * found["shape"][1])
    assert ruled["norm"] == 0.5 * found["norm"]


@pytest.mark.parametrize(
    ("kind", "rule", "side", "message"),
    [
        (FC1_WEIGHT[8:], "sum", "target", f"similar: {FC1_WEIGHT}"),
        (FC1_WEIGHT, "sum", "reference", "no ranks of the reference make the same calls"),
        (FC1_WEIGHT, "{relation: sum, ranks: [[0]]}", "target", "is on rank 1, too"),
        (FC1_WEIGHT, "{relation: concatenated, axis: 2}", "target", "has 2 axes"),
    ],
)
def test_a_rule_that_fits_no_value_is_refused(
    merge: Callable[..., Merged], kind: str, rule: str, side: str, message: str
) -> None:
    """It would silently change nothing."""
    with pytest.raises(RuleError, match=re.escape(message)) as raised:
        merge("parallel_pt_tp2", {kind: rule}, side)
    assert raised.value.line == 3
