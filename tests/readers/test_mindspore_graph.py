"""Two graph files become one dataflow with the names at run time, which the data confirm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.readers.mindspore.communications import build_communications
from dumpdiff.readers.mindspore.file_names import encode_op_name
from dumpdiff.readers.mindspore.graph import (
    Dataflow,
    find_overwritten_outputs,
    find_partial_views,
    read_dataflow,
)
from dumpdiff.readers.mindspore.ir import read_ir
from dumpdiff.readers.mindspore.join import count_verified_edges, join_records
from dumpdiff.readers.mindspore.nodes import CONSTANT, Output, parse_user_frames
from dumpdiff.readers.mindspore.op_types import (
    dumps_start_of_views,
    find_unwritten_outputs,
    is_optimizer,
)
from dumpdiff.readers.mindspore.pb import read_pb, read_pb_names
from dumpdiff.readers.mindspore.records import Records, read_records


@pytest.fixture(scope="session")
def graphs(dump: Callable[[str], Path]) -> Path:
    return dump("ms_graph") / "rank_0" / "graphs"


@pytest.fixture(scope="session")
def flow(graphs: Path) -> Dataflow:
    dataflow, problems = read_dataflow(graphs, 0)
    assert problems == []
    assert dataflow is not None
    return dataflow


@pytest.fixture(scope="session")
def records(dump: Callable[[str], Path]) -> Records:
    return read_records(dump("ms_graph") / "rank_0" / "TinyLlama" / "0" / "0", None)


# ruff: noqa: E501  # the lines of an .ir file are long
IR = """\
# IR entry: @kernel_graph0
%para1_net.weight: <Ref[Tensor[Float32]], (4, 4), ref_key=net.weight, is_parameter>  :  has_default  :  IsWeight: true
%para2_x: <Tensor[Float32], (2, 4)>  :  <Float32xDefaultFormat[const vector]{2, 4}>  :  IsWeight: false
subgraph @kernel_graph0() {
  %0(CNode_1) = Load(%para1_net.weight, UMonad[U]) cnode_attrs: {}
      : (<Ref[Tensor[Float32]], (4, 4), ref_key=net.weight>, <UMonad, NoShape>) -> (<Tensor[Float32], (4, 4)>)
      # Fullname with scope: (Default/net-Net/Load-op0)
  %1(CNode_2) = PrimFunc_Add(%0, Tensor(shape=[2, 2], dtype=BFloat16, value=
[[ 1.00000000e+00 -2.5]
 [ 3 inf]])) primitive_attrs: {names: "a) -> (b"}
      : (<Tensor[Float32], (4, 4)>, <Tensor[BFloat16], (2, 2), value=...>) -> (<Tensor[Float32], (4, 4)>)
      # Fullname with scope: (Default/net-Net/Add-op7)
      # In file /home/me/train.py:30, 4~9/    loss = net(x)/
      # In file model.py:12~14, 4~9/    def construct(self, x):/
      # In file model.py:13, 4~9/        return x + self.table/
      # In file /venv/lib/python3.11/site-packages/mindspore/ops/auto_generate/gen_ops_def.py:2155, 1~2/  add(x)/
  %2(CNode_3) = TopK(%1, I64(2), (I64(0), I64(-1)), "text", None, F32(0.5), Bool(1)) primitive_attrs: {}
      : (<Tensor[Float32], (4, 4)>) -> (<Tuple[Tensor[Float32],Tensor[Int32]], TupleShape((4, 2), (-1, 2))>)
      : full_name_with_scope: (Default/net-Net/TopK-op0)
      # In file model.py(20)/        return topk(x)/
  Return(%2)
}
"""


class TestIr:
    @pytest.fixture
    def nodes(self, tmp_path: Path):
        path = tmp_path / "graph.ir"
        path.write_text(IR)
        return read_ir(path).nodes

    def test_names_in_both_spellings(self, nodes):
        assert [node.name for node in nodes] == [
            "Default/net-Net/Load-op0",
            "Default/net-Net/Add-op7",
            "Default/net-Net/TopK-op0",
        ]
        assert [node.kind for node in nodes] == ["Load", "Add", "TopK"]

    def test_a_tensor_constant_over_several_lines(self, nodes):
        constant = nodes[1].inputs[1]
        assert (constant.dtype, constant.shape) == ("bfloat16", (2, 2))
        assert constant.values == (1.0, -2.5, 3.0, float("inf"))

    def test_scalars_tuples_and_other_values(self, nodes):
        assert [(value.kind, value.values, value.dtype) for value in nodes[2].inputs[1:]] == [
            (CONSTANT, (2.0,), "int64"),
            (CONSTANT, (0.0, -1.0), "int64"),
            ("nothing", None, ""),
            ("nothing", None, ""),
            (CONSTANT, (0.5,), "float32"),
            (CONSTANT, (1.0,), "bool"),
        ]

    def test_shapes_in_tuples_and_dynamic_ones(self, nodes):
        assert nodes[2].outputs == (Output("float32", (4, 2)), Output("int32", None))

    def test_frames_are_the_users_innermost_first(self, nodes):
        assert list(parse_user_frames(nodes[1].frames)) == [
            ("model.py", 13, "return x + self.table"),
            ("/home/me/train.py", 30, "loss = net(x)"),
        ]
        assert parse_user_frames(nodes[2].frames) == (("model.py", 20, "return topk(x)"),)

    def test_parameters_tell_weights_from_inputs(self, tmp_path: Path):
        (tmp_path / "graph.ir").write_text(IR)
        parameters = read_ir(tmp_path / "graph.ir").parameters
        assert {name: parameter.is_weight for name, parameter in parameters.items()} == {
            "net.weight": True,
            "x": False,
        }
        assert parameters["net.weight"].shape == (4, 4)

    def test_another_file_is_refused(self, tmp_path: Path):
        (tmp_path / "graph.ir").write_text("hello")
        with pytest.raises(DumpError, match="no node found"):
            read_ir(tmp_path / "graph.ir")


class TestBothFiles:
    def test_text_and_protobuf_describe_the_same_graph(self, graphs: Path):
        """Text and protobuf agree on every node, input list and parameter of a real graph."""
        pb = read_pb(graphs / "ms_output_trace_code_graph_0.pb")
        ir = read_ir(graphs / "ms_output_trace_code_graph_0.ir")
        assert len(pb.nodes) == 781
        assert [(node.name, node.kind) for node in pb.nodes] == [
            (node.name, node.kind) for node in ir.nodes
        ]
        kinds = [
            [[value.kind for value in node.inputs] for node in graph.nodes] for graph in (pb, ir)
        ]
        assert kinds[0] == kinds[1]
        assert list(pb.parameters) == list(ir.parameters)

    def test_the_names_alone(self, graphs: Path):
        path = graphs / "ms_output_trace_code_graph_0.pb"
        assert read_pb_names(path) == [node.name for node in read_pb(path).nodes]

    @pytest.mark.parametrize("length", [0, 1, 10, 1000, 100_000])
    def test_a_cut_protobuf_is_refused(self, graphs: Path, tmp_path: Path, length: int):
        (tmp_path / "cut.pb").write_bytes(
            (graphs / "ms_output_trace_code_graph_0.pb").read_bytes()[:length]
        )
        with pytest.raises(DumpError, match="cut short"):
            read_pb(tmp_path / "cut.pb")


class TestDataflow:
    def test_only_executed_ops_remain(self, flow: Dataflow):
        assert len(flow.ops) == 712
        assert all(
            slot is None or slot.op < number
            for number, op in enumerate(flow.ops)
            for slot in op.inputs
        )

    def test_a_parameter_is_read_through_load(self, flow: Dataflow):
        weights = {
            op.inputs[1].parameter
            for op in flow.ops
            if op.printed_name.endswith("w1-Dense/MatMul-op0")
        }
        assert weights == {f"n.n.layers.{layer}.mlp.w1.weight" for layer in range(4)}

    def test_numbers_are_counted_anew_and_without_gaps(self, flow: Dataflow):
        changed = [op for op in flow.ops if op.name != op.printed_name]
        assert len(changed) == 104
        numbers = [
            int(op.name.rpartition("-op")[2])
            for op in flow.ops
            if op.name.startswith("Expand/_SumExt/")
        ]
        assert numbers == sorted(numbers) == list(range(len(numbers)))

    def test_nothing_is_overwritten_without_an_optimizer(self, flow: Dataflow):
        assert find_overwritten_outputs(flow) == frozenset()


class TestJoin:
    def test_renumbered_names_are_confirmed_by_the_data(self, flow: Dataflow, records: Records):
        join = join_records(flow, records.places)
        assert (join.numbering, join.n_verified, join.n_checkable) == ("renumbered", 962, 962)

    def test_printed_names_are_refuted(self, flow: Dataflow, records: Records):
        verified, checkable = count_verified_edges(
            flow, [encode_op_name(op.printed_name) for op in flow.ops], records.places
        )
        assert (verified, checkable) == (686, 803)

    def test_a_graph_written_after_renumbering_is_taken_as_printed(
        self, flow: Dataflow, records: Records
    ):
        """As on Ascend, where the graph files hold the names of the run."""
        ops = [replace(op, printed_name=op.name, name=f"{op.name}9") for op in flow.ops]
        join = join_records(replace(flow, ops=ops), records.places)
        assert (join.numbering, join.n_verified, join.n_checkable) == ("as printed", 962, 962)

    def test_where_no_rule_fits_the_data_decide(self, flow: Dataflow, records: Records):
        """A graph with wrong numbers: reversed inside every scope and type."""
        by_prefix: dict[str, list[str]] = {}
        for op in flow.ops:
            by_prefix.setdefault(op.name.rpartition("-op")[0], []).append(op.name)
        ops = []
        for op in flow.ops:
            name = by_prefix[op.name.rpartition("-op")[0]].pop()
            ops.append(replace(op, printed_name=name, name=name))
        join = join_records(replace(flow, ops=ops), records.places)
        assert join.numbering == "by content"
        assert (join.n_verified, join.n_checkable) == (962, 962)
        n_correct = sum(
            name == encode_op_name(op.name) for name, op in zip(join.names, flow.ops, strict=True)
        )
        assert n_correct == len(flow.ops)


def test_views_of_parts_are_found_by_their_size(dump: Callable[[str], Path]) -> None:
    dataflow, _ = read_dataflow(dump("ms_views") / "rank_0" / "graphs", 0)
    assert dataflow is not None
    views = {
        f"{dataflow.ops[op].name.rpartition('/')[2]}:{output}"
        for op, output in find_partial_views(dataflow)
    }
    assert views == {
        *("ChunkView-op0:0", "ChunkView-op0:1", "ChunkView-op1:0", "ChunkView-op1:1"),
        "TransposeView-op0:0",
        *("UnstackExtView-op0:0", "UnstackExtView-op0:1", "UnstackExtView-op0:2"),
        "NarrowView-op0:0",
    }


def test_only_on_the_cpu_views_are_known_to_be_dumped_as_their_memory() -> None:
    assert dumps_start_of_views("CPU")
    assert not dumps_start_of_views("Ascend")
    assert not dumps_start_of_views("")


def test_only_the_cpu_kernel_of_batch_norm_leaves_outputs_unwritten() -> None:
    assert find_unwritten_outputs("BatchNorm", "CPU") == {1, 2}
    assert find_unwritten_outputs("BatchNorm", "Ascend") == frozenset()
    assert find_unwritten_outputs("BatchNorm", "") == frozenset()
    assert find_unwritten_outputs("LayerNorm", "CPU") == frozenset()


def test_the_ranks_of_a_group_are_read_where_the_compiler_wrote_them(tmp_path: Path) -> None:
    """In the older form of numbers, and in the newer one."""
    file = tmp_path / "graph.ir"
    numbers = ("(0, 1, 2, 3)", "(I64(2), I64(3))")
    file.write_text(IR_OF_COLLECTIVES.format(*numbers))
    nodes = read_ir(file).nodes
    table = build_communications(
        (op, node.attributes) for op, node in enumerate(nodes) if node.attributes
    )
    assert table["members"].tolist() == [(0, 1, 2, 3), (2, 3)]
    assert table["group"].tolist() == ["hccl_world_group", "2-5004544844489628105"]


IR_OF_COLLECTIVES = """\
subgraph @kernel_graph0() {{
  %1(CNode_6) = AllReduce(%0) {{instance name: reduce}} primitive_attrs: {{group: "hccl_world_group", fusion: I64(0), op: "sum", rank_list: {}, group_ranks: "0-1-2-3", index: I64(0), no_eliminate: Bool(1)}} cnode_attrs: {{checkpoint: Bool(1)}}
      : (<Tensor[Float32], (2, 3)>) -> (<Tensor[Float32], (2, 3)>)
      # Fullname with scope: (Default/AllReduce-op0)
  %2(CNode_7) = AllGather(%1) {{instance name: gather}} primitive_attrs: {{group: "2-5004544844489628105", rank_size: I64(2), group_rank_ids: {}, index: I64(0)}}
      : (<Tensor[Float32], (2, 3)>) -> (<Tensor[Float32], (4, 3)>)
      # Fullname with scope: (Default/AllGather-op0)
}}
"""


@pytest.mark.parametrize(("scope", "parameter", "expected"), [
    ("Default/optimizer-AdamWeightDecay", "", True),
    ("Default/network-TrainStep/_optimizer", "", True),
    ("Default/network/optimal_transport-OptimalTransport", "", False),
    ("Default/network", "moments.fc.weight", True),
    ("Default/network", "optimizer.adam_m.fc.weight", True),
    ("Default/network", "rssm.obs_stat_layer.weight", False),
    ("Default/network", "gradient_accum.weight", False),
])  # fmt: skip
def test_an_optimizer_is_known_by_its_scope_and_its_states(
    scope: str, parameter: str, expected: bool
) -> None:
    assert is_optimizer("Mul", scope, (parameter,)) is expected
