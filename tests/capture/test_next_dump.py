"""The next dump: what explaining a finding reads, asked for in each dumper's own terms; and
statistics that are completed by a dump of just that tell why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from traces import compare_traces, edit_tensors, find_value, locate_divergence
from traces import select_ops as select_ops_of_trace

import dumpdiff
from dumpdiff.capture import mindspore
from dumpdiff.capture.cost import count_op_bytes, flag_op_tensors
from dumpdiff.capture.mindspore.kernels import parse_kernel
from dumpdiff.capture.next_dump import NextDumps, build_loop, plan_next_dump
from dumpdiff.capture.op_selection import find_gradient_calls, select_ops
from dumpdiff.comparison import Comparison
from dumpdiff.graph import build_flow
from dumpdiff.model.errors import DumpError
from dumpdiff.model.finding import Finding
from dumpdiff.model.trace import Trace

ADD = (
    "Default/network-WithLoss/backbone-Llama/layers-CellList/0-Decoder/input_norm-RMSNorm/Add-op12"
)
PARTNER = "Tensor.__add__.12.forward"
NEXT = Path("/data/next")


@pytest.fixture(scope="module")
def pair(trace: Callable[[str], Trace]) -> tuple[Trace, Trace]:
    return trace("demo_mindspore"), trace("demo_pytorch")


@pytest.fixture(scope="module")
def comparison(pair: tuple[Trace, Trace]) -> Comparison:
    return compare_traces(*pair)


@pytest.fixture(scope="module")
def finding(pair: tuple[Trace, Trace]) -> Finding:
    (found,) = locate_divergence(*pair).findings
    assert found.target_ops == (ADD,)
    return found


def list_names(trace: Trace, ops: Sequence[int]) -> list[str]:
    return trace.ops["name"].iloc[list(ops)].tolist()


def plan(comparison: Comparison, finding: Finding, count: int | None = None) -> NextDumps:
    return plan_next_dump(comparison, [finding], NEXT, ["dumpdiff", "align"], max_ops=count)


def test_it_begins_with_the_finding_and_holds_what_both_sides_computed_it_from(
    pair, comparison: Comparison, finding: Finding
) -> None:
    target, reference = select_ops(comparison, [finding])
    assert (list_names(pair[0], target)[0], list_names(pair[1], reference)[0]) == (ADD, PARTNER)
    flow = comparison.alignment.reference
    mean_square = find_value(flow, PARTNER, "input.0")
    recorded_values = {value for op in reference for value in (*flow.reads[op], *flow.writes[op])}
    assert mean_square in recorded_values
    assert find_value(flow, "Tensor.mean.3.forward", "input.0") in recorded_values


def test_the_bytes_stay_within_the_budget_but_never_without_the_finding(
    pair, comparison: Comparison, finding: Finding
) -> None:
    shares = []
    for max_bytes in (0, 20_000, None):
        selected = select_ops(comparison, [finding], max_bytes)
        assert (list_names(pair[0], selected[0])[0], list_names(pair[1], selected[1])[0]) == (
            ADD,
            PARTNER,
        )
        counts = [count_op_bytes(trace) for trace in pair]
        shares.append(
            [
                count[list(ops)].sum() / count.sum()
                for count, ops in zip(counts, selected, strict=True)
            ]
        )
    assert len(select_ops(comparison, [finding], 0)[0]) == 1
    assert max(shares[2]) <= 0.03
    assert shares[0] < shares[1] < shares[2]


def test_no_gradient_is_asked_for_to_explain_a_forward_pass(
    pair, comparison: Comparison, finding: Finding
) -> None:
    for trace, ops in zip(pair, select_ops(comparison, [finding], max_ops=40), strict=True):
        assert set(trace.ops["phase"].iloc[list(ops)]) == {"forward"}
        assert set(trace.ops["level"].iloc[list(ops)]) == {"op"}


def test_around_a_gradient_the_forward_call_is_asked_for_too(
    pair, comparison: Comparison, finding: Finding
) -> None:
    backward = replace(
        finding, phase="backward", target_ops=(), reference_ops=("Torch.rsqrt.3.backward",)
    )
    names = list_names(pair[1], select_ops(comparison, [backward])[1])
    assert {"Torch.rsqrt.3.backward", "Torch.rsqrt.3.forward"} <= set(names)


def test_a_dump_of_modules_alone_is_asked_for_modules(trace: Callable[[str], Trace]) -> None:
    """What a run at level L0 leaves: only the calls that hold no other record."""
    whole = trace("demo_pytorch")
    modules = [row for row, level in enumerate(whole.ops["level"]) if level == "module"]
    only = select_ops_of_trace(whole, modules)
    linear = next(name for name in only.ops["name"] if ".Linear.forward" in name)
    finding = Finding(1, "introduced", "forward", "", "", (linear,), (), (), {}, 0.0, 1.0, ())
    target, _ = select_ops(compare_traces(only, only), [finding], max_ops=3)
    assert list_names(only, target)[0] == linear


def test_the_gradient_of_a_parameter_comes_with_the_backward_call_of_its_module(
    pair, comparison: Comparison, finding: Finding
) -> None:
    """Msprobe cannot be asked for the record of a gradient; it writes it with that call."""
    record = "Module.model.layers.0.mlp.gate_proj.Linear.parameters_grad.0"
    gradient = replace(finding, phase="backward", target_ops=(), reference_ops=(record,), slots=())
    selected = list_names(pair[1], select_ops(comparison, [gradient])[1])
    calls = [
        "Module.model.layers.0.mlp.gate_proj.Linear.backward.0",
        "Functional.linear.4.backward",
    ]
    assert selected[:3] == [*calls, record]
    side = plan(comparison, gradient).reference
    assert side.ops[:2] == tuple(calls)
    assert record not in side.ops
    assert record not in json.loads(side.text)["tensor"]["list"]
    assert flag_op_tensors(pair[1], select_ops(comparison, [gradient])[1]).sum() == (
        side.cost.tensors
    )


def test_a_module_that_holds_others_is_not_opened_for_a_gradient(
    trace: Callable[[str], Trace],
) -> None:
    """With its backward call, everything inside would be recorded."""
    flow = build_flow(trace("demo_pytorch"))
    names, parents = flow.trace.ops["name"].tolist(), flow.trace.ops["parent"].tolist()
    holding_modules = {
        names[parent]
        for name, parent in zip(names, parents, strict=True)
        if parent >= 0 and name.startswith("Module.")
    }
    calls = {names[call] for calls in find_gradient_calls(flow).values() for call in calls}
    assert calls
    assert holding_modules
    assert holding_modules.isdisjoint(name.replace(".backward.", ".forward.") for name in calls)


def test_what_a_round_recorded_is_not_asked_for_again(
    pair, comparison: Comparison, finding: Finding
) -> None:
    """The second round goes on where the first one ended."""
    first_round = select_ops(comparison, [finding])
    traces = [
        edit_tensors(trace, np.flatnonzero(~trace.tensors["op"].isin(ops)).tolist(), file="")
        for trace, ops in zip(pair, first_round, strict=True)
    ]
    second_round = select_ops(compare_traces(*traces), [finding])
    assert any(second_round)
    for first_ops, second_ops in zip(first_round, second_round, strict=True):
        assert not set(first_ops) & set(second_ops)


def test_kernels_are_called_as_the_runtime_calls_them(
    pair, comparison: Comparison, finding: Finding
) -> None:
    """Each entry selects its operator in a dump that the same run would leave, and no other."""
    side = plan(comparison, finding, 20).target
    common = json.loads(side.text)["common_dump_settings"]
    assert (common["dump_mode"], common["iteration"], common["support_device"]) == (1, "0", [0])
    assert common["path"] == "/data/next/target"
    runtime = pair[0].ops["name"].tolist()
    for entry in common["kernels"]:
        assert [name for name in runtime if parse_kernel(entry).selects(name)] == [entry]


def test_without_a_graph_a_regular_expression_stands_for_the_slashes(
    dump: Callable[[str], Path], pair, finding: Finding, tmp_path: Path
) -> None:
    stripped = tmp_path / "stripped"
    shutil.copytree(
        dump("demo_mindspore"), stripped, ignore=shutil.ignore_patterns("graphs", "execution_order")
    )
    target = dumpdiff.read(stripped)
    finding = replace(finding, target_ops=(ADD.replace("/", "_"),))
    side = plan(compare_traces(target, pair[1]), finding, 10).target
    runtime = pair[0].ops["name"].tolist()
    selected = [
        [name for name in runtime if parse_kernel(entry).selects(name)]
        for entry in json.loads(side.text)["common_dump_settings"]["kernels"]
    ]
    assert selected[0] == [ADD]
    assert all(len(names) == 1 for names in selected)


def test_the_backend_and_the_version_are_those_of_the_dump(
    pair, comparison: Comparison, finding: Finding
) -> None:
    side = plan(comparison, finding, 5).target
    on = mindspore.Target("cpu", mindspore.Version(2, 10))
    assert mindspore.check(json.loads(side.text), on, run_is_local=False) == ()


def test_msprobe_is_asked_by_full_names_for_whole_tensors_of_that_step(
    pair, comparison: Comparison, finding: Finding
) -> None:
    side = plan(comparison, finding, 20).reference
    config = json.loads(side.text)
    assert (config["task"], config["step"], config["rank"], config["level"]) == (
        "tensor",
        [0],
        [],
        "mix",
    )
    assert config["tensor"]["list"][0] == PARTNER
    assert set(config["tensor"]["list"]) <= set(pair[1].ops["name"])
    assert "PrecisionDebugger(config_path='/data/next/reference_config.json')" in side.instructions


def test_ptdbg_gets_its_list_in_the_script(trace: Callable[[str], Trace], finding: Finding) -> None:
    there = trace("v6.0_api_stack")
    finding = replace(finding, reference_ops=("Functional.linear.18.forward",), target_ops=())
    side = plan(compare_traces(there, there), finding, 3).reference
    assert (side.file, side.text) == ("", "")
    assert "mode=\"list\", scope=['Functional.linear.18.forward'" in "\n".join(side.instructions)


def test_few_ops_cost_less_than_everything(comparison: Comparison, finding: Finding) -> None:
    narrowed = plan(comparison, finding)
    for side in (narrowed.target, narrowed.reference):
        assert 0 < side.cost.bytes < 0.05 * side.full_cost.bytes


def test_impossible_plans_are_refused_with_a_reason(
    comparison: Comparison, finding: Finding, tmp_path: Path
) -> None:
    command = ["dumpdiff", "align"]
    with pytest.raises(DumpError, match="nothing to record: the comparison has no findings"):
        plan_next_dump(comparison, [], NEXT, command)
    with pytest.raises(DumpError, match=r"/data/v1\.0"):
        plan_next_dump(comparison, [finding], Path("/data/v1.0"), command)
    (tmp_path / "reference").mkdir()
    with pytest.raises(
        DumpError, match="already exists, and two dumps would be mixed; give another folder"
    ):
        plan_next_dump(comparison, [finding], tmp_path, command)


def test_the_printed_command_completes_the_first_dumps(
    comparison: Comparison, finding: Finding
) -> None:
    commands = plan_next_dump(comparison, [finding], NEXT, ["dumpdiff", "align", "a", "b"]).commands
    assert commands == (
        "dumpdiff align a b --narrowed /data/next -o /data/next_result",
        "dumpdiff explain /data/next_result",
    )


def test_a_loop_runs_both_sides_and_compares_until_a_cause_is_found(tmp_path: Path) -> None:
    loop = build_loop(
        ("mindspore", "msprobe"), Path("/data/first"), Path("/data/next"), ["--ops", "8"]
    )
    file = tmp_path / "loop.sh"
    file.write_text(loop)
    stub = tmp_path / "dumpdiff"
    stub.write_text(_STUB)
    stub.chmod(0o755)
    loop = loop.replace("/data/", f"{tmp_path}/")
    file.write_text(loop)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    log = tmp_path / "log"
    run = subprocess.run(
        ["sh", file, f"echo target $CONFIG >> {log}", f"echo reference $DUMP_CONFIG >> {log}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert log.read_text().splitlines() == [
        f"narrow {tmp_path}/first -o {tmp_path}/next1 --ops 8",
        "target",
        f"reference {tmp_path}/next1/reference_config.json",
        f"narrow {tmp_path}/next1_result -o {tmp_path}/next2 --ops 8",
        "target",
        f"reference {tmp_path}/next2/reference_config.json",
    ]


#: A dumpdiff that writes empty configurations; its second round finds a cause.
_STUB = """\
#!/bin/sh
[ "$1" = env ] && exit
folder=$4
mkdir -p "$folder"
echo "$@" >> "$(dirname "$0")/log"
touch "$folder/target_dump.json" "$folder/reference_config.json"
case "$folder" in *1) code=3;; *) code=0;; esac
echo "exit $code" > "$folder/compare.sh"
"""


def test_a_dumper_without_a_configuration_has_no_loop() -> None:
    with pytest.raises(DumpError, match="narrow round by round"):
        build_loop(("ptdbg", "msprobe"), Path("first"), Path("next"), [])
