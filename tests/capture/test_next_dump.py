"""The next dump: the ops around a finding, asked for in each dumper's own terms; and a dump of
just those tells why.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from traces import align_traces, find_op, locate_divergence, select_ops

import dumpdiff
from dumpdiff.alignment import Alignment
from dumpdiff.capture import mindspore
from dumpdiff.capture.mindspore.kernels import parse_kernel
from dumpdiff.capture.neighbours import select_nearby_ops
from dumpdiff.capture.next_dump import NextDumps, plan_next_dump
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
def alignment(pair: tuple[Trace, Trace]) -> Alignment:
    return align_traces(*pair)


@pytest.fixture(scope="module")
def finding(pair: tuple[Trace, Trace]) -> Finding:
    (found,) = locate_divergence(*pair).findings
    assert found.target_ops == (ADD,)
    return found


def list_names(trace: Trace, ops: Sequence[int]) -> list[str]:
    return trace.ops["name"].iloc[list(ops)].tolist()


def test_it_begins_with_the_finding_and_holds_both_sides_of_what_is_around_it(
    pair, alignment: Alignment, finding: Finding
) -> None:
    target, reference = select_nearby_ops(alignment, [finding], 20)
    assert (len(target), len(reference)) == (20, 20)
    assert (list_names(pair[0], target)[0], list_names(pair[1], reference)[0]) == (ADD, PARTNER)
    assert {"Tensor.mean.3.forward", "Torch.rsqrt.3.forward"} <= set(
        list_names(pair[1], reference)[:4]
    )
    partners = dict(zip(alignment.ops["target"], alignment.ops["reference"], strict=True))
    shared = [op for op in target[:10] if partners.get(op) in reference]
    assert len(shared) >= 6


def test_no_gradient_is_asked_for_to_explain_a_forward_pass(
    pair, alignment: Alignment, finding: Finding
) -> None:
    for trace, ops in zip(pair, select_nearby_ops(alignment, [finding], 40), strict=True):
        assert set(trace.ops["phase"].iloc[list(ops)]) == {"forward"}
        assert set(trace.ops["level"].iloc[list(ops)]) == {"op"}


def test_around_a_gradient_the_forward_pass_is_asked_for_too(
    pair, alignment: Alignment, finding: Finding
) -> None:
    backward = replace(
        finding, phase="backward", target_ops=(), reference_ops=("Torch.rsqrt.3.backward",)
    )
    ops = select_nearby_ops(alignment, [backward], 20)[1]
    assert set(pair[1].ops["phase"].iloc[list(ops)]) == {"forward", "backward"}


def test_a_dump_of_modules_alone_is_asked_for_modules(trace: Callable[[str], Trace]) -> None:
    """What a run at level L0 leaves."""
    whole = trace("demo_pytorch")
    modules = [row for row, level in enumerate(whole.ops["level"]) if level == "module"]
    only = select_ops(whole, modules)
    finding = Finding(
        1, "introduced", "forward", "", "", (only.ops["name"].iat[5],), (), (), {}, 0.0, 1.0, ()
    )
    target, _ = select_nearby_ops(align_traces(only, only), [finding], 3)
    assert len(target) == 3


def test_kernels_are_called_as_the_runtime_calls_them(
    pair, alignment: Alignment, finding: Finding
) -> None:
    """Each entry selects its operator in a dump that the same run would leave, and no other."""
    side = plan_next_dump(alignment, [finding], 20, NEXT).target
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
    side = plan_next_dump(align_traces(target, pair[1]), [finding], 10, NEXT).target
    runtime = pair[0].ops["name"].tolist()
    selected = [
        [name for name in runtime if parse_kernel(entry).selects(name)]
        for entry in json.loads(side.text)["common_dump_settings"]["kernels"]
    ]
    assert selected[0] == [ADD]
    assert all(len(names) == 1 for names in selected)


def test_the_backend_and_the_version_are_those_of_the_dump(
    pair, alignment: Alignment, finding: Finding
) -> None:
    side = plan_next_dump(alignment, [finding], 5, NEXT).target
    on = mindspore.Target("cpu", mindspore.Version(2, 10))
    assert mindspore.check(json.loads(side.text), on, run_is_local=False) == ()


def test_msprobe_is_asked_by_full_names_for_whole_tensors_of_that_step(
    pair, alignment: Alignment, finding: Finding
) -> None:
    side = plan_next_dump(alignment, [finding], 20, NEXT).reference
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
    side = plan_next_dump(align_traces(there, there), [finding], 3, NEXT).reference
    assert (side.file, side.text) == ("", "")
    assert "mode=\"list\", scope=['Functional.linear.18.forward'" in "\n".join(side.instructions)


def test_few_ops_cost_less_than_everything(pair, alignment: Alignment, finding: Finding) -> None:
    narrowed = plan_next_dump(alignment, [finding], 20, NEXT)
    for side in (narrowed.target, narrowed.reference):
        assert len(side.ops) == 20
        assert 10 * side.cost.tensors < side.full_cost.tensors


def test_impossible_plans_are_refused_with_a_reason(
    pair, alignment: Alignment, finding: Finding, tmp_path: Path
) -> None:
    with pytest.raises(DumpError, match="nothing to record: the comparison has no findings"):
        plan_next_dump(alignment, [], 20, NEXT)
    with pytest.raises(DumpError, match=r"/data/v1\.0"):
        plan_next_dump(alignment, [finding], 20, Path("/data/v1.0"))
    (tmp_path / "reference").mkdir()
    with pytest.raises(
        DumpError, match="already exists, and two dumps would be mixed; give another folder"
    ):
        plan_next_dump(alignment, [finding], 20, tmp_path)


def test_a_dump_of_just_these_ops_finds_it_again_and_says_why(
    pair, alignment: Alignment, finding: Finding, dump: Callable[[str], Path], tmp_path: Path
) -> None:
    narrowed = plan_next_dump(alignment, [finding], 20, NEXT)
    result = dumpdiff.align(*_record_next_dump(pair, narrowed, dump, tmp_path))
    first = result.first_divergence
    assert result.verdict == "diverged"
    assert first is not None
    assert (first.target_ops, first.reference_ops) == (finding.target_ops, finding.reference_ops)
    assert first.causes[0].name == "epsilon"


def _record_next_dump(
    pair, narrowed: NextDumps, dump: Callable[[str], Path], into: Path
) -> tuple[Path, Path]:
    """The two dumps as the dumpers would have left them, had they been given the configurations."""
    target, reference = into / "target", into / "reference"
    shutil.copytree(dump("demo_mindspore"), target)
    chosen = {find_op(pair[0], name) for name in narrowed.target.ops}
    kept = set(pair[0].tensors[pair[0].tensors["op"].isin(chosen)]["file"])
    for file in target.rglob("*.npy"):
        if file.name not in kept:
            file.unlink()
    shutil.copytree(dump("demo_pytorch"), reference)
    (file,) = reference.rglob("dump.json")
    content = json.loads(file.read_text())
    content["data"] = {
        name: entry for name, entry in content["data"].items() if name in narrowed.reference.ops
    }
    file.write_text(json.dumps(content))
    return target, reference
