"""MindSpore's own dump: its parts, its trace, and damaged or hostile folders."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dumpdiff import readers
from dumpdiff.model.errors import DumpError
from dumpdiff.model.trace import Trace
from dumpdiff.readers import mindspore
from readers.single_traces import find_single_part, read_trace, select_op, select_slots

FIXTURES = Path(__file__).parents[2] / "fixtures"
ITERATION = Path("rank_0/TinyLlama/0/0")


@pytest.fixture(scope="session")
def root(dump: Callable[[str], Path]) -> Path:
    return dump("ms_graph")


@pytest.fixture(scope="session")
def trace(root: Path) -> Trace:
    return read_trace(root)


@pytest.fixture(scope="session")
def statistics(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same dump as statistics, with all four of them."""
    dest = tmp_path_factory.mktemp("statistics") / "ms_graph"
    return write_statistics(root, dest, "max,min,avg,l2norm")


def write_statistics(root: Path, dest: Path, categories: str) -> Path:
    """Write the statistic.csv of a dump of npy files, with these categories, into ``dest``."""
    script = FIXTURES / "make_statistic_csv.py"
    subprocess.run(
        [sys.executable, script, root, dest, "--categories", categories],
        check=True,
        capture_output=True,
    )
    return dest


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A small part of the dump, to be damaged: the files of 40 ops and the graph."""
    dest = tmp_path / "copy"
    names = sorted(path.name for path in (root / ITERATION).iterdir())[:160]
    shutil.copytree(root, dest, ignore=shutil.ignore_patterns("*.npy"))
    for name in names:
        shutil.copy(root / ITERATION / name, dest / ITERATION / name)
    return dest


class TestFind:
    def test_every_level_of_the_tree_finds_the_iteration(self, root: Path):
        for level in (".", "rank_0", "rank_0/TinyLlama", "rank_0/TinyLlama/0", ITERATION):
            part = find_single_part(root / level)
            assert (part.step, part.rank, part.graph, part.has_whole_tensors) == (0, 0, 0, True)
            assert part.path.resolve() == (root / ITERATION).resolve()

    def test_a_statistic_csv_by_itself(self, statistics: Path):
        part = find_single_part(statistics / ITERATION / "statistic.csv")
        assert (part.step, part.rank, part.graph, part.has_whole_tensors) == (0, 0, 0, False)

    def test_several_ranks_graphs_and_iterations(self, copy: Path, tmp_path: Path):
        many = tmp_path / "many"
        for rank, graph, step in ((0, 0, 0), (0, 0, 10), (0, 0, 2), (0, 3, 0), (1, 0, 0)):
            shutil.copytree(
                copy / ITERATION, many / f"rank_{rank}" / "net" / str(graph) / str(step)
            )
        numbers = [(part.rank, part.graph, part.step) for part in readers.list_parts(many)]
        assert numbers == [(0, 0, 0), (0, 0, 2), (0, 0, 10), (0, 3, 0), (1, 0, 0)]

    @pytest.mark.parametrize("other", ["v6.0_api_stack", "ms_mf_none"])
    def test_dumps_of_other_tools_are_not_taken(self, dump: Callable[[str], Path], other: str):
        assert "mindspore" not in {part.format for part in readers.list_parts(dump(other))}

    def test_a_name_alone_is_no_dump(self, tmp_path: Path):
        name = "Add.Default_Add-op0.0.0.1734008383669918.input.0.DefaultFormat.Float32.npy"
        (tmp_path / name).write_text("no array")
        (tmp_path / "statistic.csv").write_text("Op Type,Op Name,Count\nAdd,Add-op0,3\n")
        assert readers.list_parts(tmp_path) == []
        assert readers.list_parts(tmp_path / "statistic.csv") == []

    def test_an_empty_folder(self, tmp_path: Path):
        assert readers.list_parts(tmp_path) == []


class TestGraphAndTensors:
    def test_every_file_finds_its_op_and_every_edge_is_verified(self, trace: Trace):
        assert trace.problems == ()
        assert trace.source.details["op_numbers"] == "renumbered"
        assert trace.source.details["npy_matched"] == (2471, 2471)
        assert trace.source.details["edges_verified"] == (962, 962)

    def test_the_source_says_where_it_comes_from(self, trace: Trace):
        source = trace.source
        assert (source.format, source.framework, source.step, source.rank, source.graph) == (
            "mindspore", "mindspore", 0, 0, 0,
        )  # fmt: skip
        assert source.details["version"] == "2.10.0"
        assert source.details["device"] == "CPU"
        assert source.format_variant == "npy files of 2.4 or newer"

    def test_names_are_those_of_the_run_not_those_printed_in_the_graph(self, trace: Trace):
        """``Expand/_MatMulExt/BatchMatMul`` has gaps in its numbers only in the graph files."""
        numbers = [
            int(name.rpartition("-op")[2])
            for name in trace.ops["name"]
            if name.startswith("Expand/_MatMulExt/Batch")
        ]
        assert numbers == list(range(24))

    def test_an_op_in_full(self, trace: Trace):
        name = "Default/n-WithLoss/n-TinyLlama/layers-CellList/2-Block/mlp-MLP/w1-Dense/MatMul-op0"
        row = select_op(trace, name)
        assert (row["kind"], row["phase"], row["level"]) == ("MatMul", "forward", "op")
        assert row["scope"] == "n-WithLoss/n-TinyLlama/layers-CellList/2-Block/mlp-MLP/w1-Dense"
        assert row["source"] == "model_ms.py:77"
        assert row["stack"].splitlines()[0].startswith("model_ms.py:77 ")
        assert "site-packages" not in row["stack"]
        tensors = select_slots(trace, name)
        assert tensors.loc["input.1", "parameter"] == "n.n.layers.2.mlp.w1.weight"
        assert tensors.loc["input.1", "shape"] == (172, 64)
        assert list(tensors.index) == ["input.0", "input.1", "input.2", "input.3", "output.0"]
        assert tensors["constant"].tolist() == [False, False, True, True, False]
        assert tensors.loc["output.0", "dtype"] == "float32"

    def test_constants_carry_their_value(self, trace: Trace):
        tensors = select_slots(
            trace,
            "Default/n-WithLoss/n-TinyLlama/layers-CellList/0-Block/input_norm-RMSNorm/Add-op0",
        )
        eps = tensors.loc["input.1"]
        assert eps["constant"]
        assert eps["max"] == eps["min"] == eps["mean"] == eps["norm"] == 1e-5
        axis = select_slots(trace, "Default/ReduceMean-op0").loc["input.1"]
        assert (axis["max"], axis["norm"], axis["shape"]) == (-1, 1, (1,))

    def test_reshapes_have_the_shape_of_the_graph_not_of_the_file(self, trace: Trace):
        reshaped = select_slots(
            trace, "Default/n-WithLoss/n-TinyLlama/embedding-Embedding/Reshape-op0"
        ).loc["output.0"]
        assert reshaped["shape"] == (32,)
        (tensor,) = trace.tensors.index[trace.tensors["file"] == reshaped["file"]]
        assert trace.array(tensor).shape == (2, 16)

    def test_tuples_are_spread_over_the_slots(self, trace: Trace):
        """SplitWithSize was expanded to slices in a tuple: the producer is the slice."""
        grads = trace.ops.index[trace.ops["kind"] == "StridedSliceGrad"]
        first = trace.tensors[
            (trace.tensors["op"] == grads[0]) & (trace.tensors["slot"] == "input.0")
        ].iloc[0]
        assert trace.ops["kind"][trace.tensors["op"][first["source_tensor"]]] in {"Slice", "Neg"}
        assert (
            not trace.ops["kind"]
            .isin(["MakeTuple", "TupleGetItem", "Depend", "Load", "UpdateState"])
            .any()
        )

    def test_producers_come_before_their_consumers(self, trace: Trace):
        read = trace.tensors[trace.tensors["source_tensor"] >= 0]
        producers = trace.tensors.loc[read["source_tensor"]]
        assert (producers["slot_kind"] == "output").all()
        assert (producers["op"].to_numpy() < read["op"].to_numpy()).all()

    def test_what_was_computed_has_a_producer(self, trace: Trace):
        inputs = trace.tensors[(trace.tensors["slot_kind"] == "input") & ~trace.tensors["constant"]]
        assert (inputs["source_tensor"] >= 0).all()

    def test_edges_join_equal_arrays(self, trace: Trace):
        read = trace.tensors[
            (trace.tensors["source_tensor"] >= 0) & (trace.tensors["file"] != "")
        ].iloc[::50]
        for tensor, producer in zip(read.index, read["source_tensor"], strict=True):
            np.testing.assert_array_equal(
                trace.array(tensor).ravel(), trace.array(producer).ravel()
            )

    def test_phases(self, trace: Trace):
        assert set(trace.ops["phase"]) == {"forward", "backward"}
        phase = dict(zip(trace.ops["name"], trace.ops["phase"], strict=True))
        assert {phase[name] for name in phase if name.startswith("Gradients/")} == {"backward"}
        assert phase["Expand/_SiLU/Mul-op0"] == "forward"
        assert phase["Expand/_SiLUGrad/Mul-op0"] == "backward"
        assert {phase[f"Expand/_MatMulExt/BatchMatMul-op{n}"] for n in range(8, 24)} == {"backward"}

    def test_parameters_and_inputs_are_the_first_ops(self, trace: Trace):
        parameters = trace.ops[trace.ops["kind"] == "Parameter"]
        assert parameters.index.tolist() == list(range(41))
        rows = trace.tensors[trace.tensors["op"] < 41]
        assert rows["trusted"].all()  # no optimizer in this graph
        assert rows.loc[rows["parameter"] == "", "op"].map(parameters["name"]).tolist() == [
            "x",
            "y",
        ]

    def test_two_dumps_of_one_model_have_the_same_rows(
        self, trace: Trace, dump: Callable[[str], Path]
    ):
        other = read_trace(dump("ms_graph_bug_w1"))
        assert other.source.details["edges_verified"] == (962, 962)
        columns = [
            "name",
            "kind",
            "phase",
            "scope",
        ]  # the model file of the other run has more lines
        pd.testing.assert_frame_equal(trace.ops[columns], other.ops[columns])
        columns = ["op", "slot", "dtype", "shape", "source_tensor", "parameter"]
        pd.testing.assert_frame_equal(trace.tensors[columns], other.tensors[columns])


class TestStatistics:
    def test_joined_with_the_graph_by_equal_statistics(self, trace: Trace, statistics: Path):
        other = read_trace(statistics)
        assert other.problems == ()
        assert other.source.details["edges_verified"] == (962, 962)
        assert other.source.resolution == 1e-6
        pd.testing.assert_frame_equal(trace.ops, other.ops)
        columns = ["op", "slot", "dtype", "shape", "size", "source_tensor", "parameter", "constant"]
        pd.testing.assert_frame_equal(trace.tensors[columns], other.tensors[columns])

    def test_the_numbers_are_those_of_the_arrays(self, trace: Trace, statistics: Path):
        other = read_trace(statistics).tensors
        for tensor in trace.tensors.index[trace.tensors["file"] != ""][::60]:
            array = trace.array(tensor).astype(np.float64)
            statistics_row = other.loc[tensor, ["max", "min", "mean", "norm"]].astype(float)
            expected = [array.max(), array.min(), array.mean(), np.linalg.norm(array)]
            np.testing.assert_allclose(statistics_row, expected, rtol=5e-6, atol=1e-300)
            assert other["nonfinite"][tensor] == 0

    def test_hashes_in_any_order_of_columns(self, root: Path, tmp_path: Path, trace: Trace):
        other = read_trace(write_statistics(root, tmp_path / "hashes", "md5,min,nan count,max"))
        assert other.source.details["edges_verified"] == (962, 962)
        tensor = trace.tensors.index[trace.tensors["file"] != ""][100]
        assert (
            other.tensors["hash"][tensor] == hashlib.md5(trace.array(tensor).tobytes()).hexdigest()
        )

    def test_files_and_statistics_together(self, copy: Path, statistics: Path):
        shutil.copy(statistics / ITERATION / "statistic.csv", copy / ITERATION)
        tensors = read_trace(copy).tensors
        with_file = tensors[tensors["file"] != ""]
        assert len(with_file) == 160
        assert not with_file[["max", "min", "mean", "norm"]].isna().any(axis=None)
        assert (tensors["max"].notna() & (tensors["file"] == "")).any()

    def test_a_csv_alone_in_a_folder(self, statistics: Path, tmp_path: Path):
        shutil.copy(statistics / ITERATION / "statistic.csv", tmp_path / "step5.csv")
        trace = read_trace(tmp_path / "step5.csv")
        assert trace.source.step is None
        assert "edges_verified" not in trace.source.details
        assert trace.tensors["max"].notna().all()


@pytest.fixture(scope="session")
def trace_without_graph(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """The same dump without the graph files."""
    dest = tmp_path_factory.mktemp("alone") / "dump"
    shutil.copytree(root, dest, ignore=shutil.ignore_patterns("graphs"))
    return read_trace(dest)


class TestWithoutTheGraph:
    def test_ops_are_known_by_their_encoded_names(self, trace_without_graph: Trace):
        name = "Default_n-WithLoss_n-TinyLlama_layers-CellList_2-Block_mlp-MLP_w1-Dense_MatMul-op0"
        assert select_op(trace_without_graph, name)["kind"] == "MatMul"
        assert len(trace_without_graph.tensors) == 2471
        assert (trace_without_graph.tensors["source_tensor"] == -1).all()

    def test_phases_are_recognized_by_prefix(self, trace_without_graph: Trace):
        names = trace_without_graph.ops["name"].str.startswith("Gradients_")
        assert (trace_without_graph.ops.loc[names, "phase"] == "backward").all()
        assert (
            trace_without_graph.ops.loc[
                trace_without_graph.ops["name"].str.startswith("Default_"), "phase"
            ]
            == "forward"
        ).all()

    def test_ops_are_in_order_of_time(self, trace_without_graph: Trace):
        names = trace_without_graph.ops["name"].tolist()
        assert names.index(
            "Default_n-WithLoss_n-TinyLlama_embedding-Embedding_Gather-op0"
        ) < names.index("Expand__SiLUGrad_Mul-op0")

    @pytest.mark.parametrize("missing", ["*.pb", "*.ir"])
    def test_one_of_the_two_graph_files_is_enough(self, copy: Path, root: Path, missing: str):
        full_trace = read_trace(copy)
        for path in (copy / "rank_0" / "graphs").glob(missing):
            path.unlink()
        partial_trace = read_trace(copy)
        assert partial_trace.problems == ()
        pd.testing.assert_series_equal(full_trace.ops["name"], partial_trace.ops["name"])
        columns = ["op", "slot", "source_tensor", "constant"]
        pd.testing.assert_frame_equal(full_trace.tensors[columns], partial_trace.tensors[columns])


class TestOldNames:
    def test_double_dashes_are_slashes(self, copy: Path, tmp_path: Path):
        old = tmp_path / "old" / "rank_0" / "net" / "0" / "0"
        old.mkdir(parents=True)
        for path in (copy / ITERATION).glob(
            "Add.Default_n-WithLoss_n-TinyLlama_layers-CellList_0-Block_*"
        ):
            name = path.name.replace("Default_n-WithLoss_", "Default--n-WithLoss--").removesuffix(
                ".Float32.npy"
            )
            shutil.copy(path, old / f"{name}.npy")
        trace = read_trace(tmp_path / "old")
        assert trace.source.format_variant == "npy files of before 2.3 ('--' for '/')"
        assert trace.ops["name"].str.startswith("Default/n-WithLoss/").all()


class TestDamage:
    def test_files_that_cannot_be_read_are_counted_and_the_rest_is_used(self, copy: Path):
        folder = copy / ITERATION
        names = sorted(path.name for path in folder.glob("*.npy"))
        full_trace = read_trace(copy)
        (folder / names[0]).write_bytes(b"")
        os.truncate(folder / names[1], 130)
        (folder / names[2]).write_bytes(b"garbage" * 30)
        trace = read_trace(copy)
        messages = {problem.file: problem.message for problem in trace.problems}
        assert set(messages) == set(names[:3])
        assert messages[names[0]] == "empty file, expected .npy"
        assert "cut short" in messages[names[1]]
        assert (trace.tensors["file"] != "").sum() == (full_trace.tensors["file"] != "").sum() - 3
        assert len(trace.ops) == len(full_trace.ops)

    def test_a_link_out_of_the_folder_is_not_followed(self, copy: Path, tmp_path: Path):
        folder = copy / ITERATION
        victim = next(folder.glob("*.npy"))
        victim.rename(tmp_path / "elsewhere.npy")
        victim.symlink_to(tmp_path / "elsewhere.npy")
        trace = read_trace(copy)
        assert [problem.file for problem in trace.problems] == [victim.name]
        assert victim.name not in set(trace.tensors["file"])
        with pytest.raises(DumpError, match="outside"):
            trace.load("../../../../elsewhere.npy")

    @pytest.mark.parametrize("spelling", ["pb", "ir"])
    def test_a_broken_graph_file_is_a_problem_and_the_other_one_is_used(
        self, copy: Path, spelling: str
    ):
        (broken,) = (copy / "rank_0" / "graphs").glob(f"*.{spelling}")
        broken.write_bytes(b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" * 20)
        trace = read_trace(copy)
        assert [problem.file for problem in trace.problems] == [f"graphs/{broken.name}"]
        assert trace.source.details["op_numbers"] == "renumbered"

    def test_the_graph_of_another_run_is_not_used(self, copy: Path):
        folder = copy / ITERATION
        for path in folder.glob("*.npy"):
            path.rename(folder / path.name.replace(".", ".Other_", 1))
        trace = read_trace(copy)
        assert "not one recorded op is in the graph" in str(trace.problems[-1])
        assert trace.ops["name"].str.startswith("Other_").all()

    def test_nothing_readable_is_an_error(self, copy: Path):
        part = find_single_part(copy)
        for path in (copy / ITERATION).glob("*.npy"):
            path.write_bytes(b"")
        with pytest.raises(DumpError, match="not one tensor"):
            mindspore.read_part(part)

    def test_a_file_without_permission_bits(self, copy: Path):
        for path in (copy / ITERATION).glob("*.npy"):
            path.chmod(0o400)
        assert read_trace(copy).problems == ()

    def test_reruns_into_one_folder(self, copy: Path):
        folder = copy / ITERATION
        later = 60_000_000
        for path in list(folder.glob("*.npy")):
            parts = path.name.split(".")
            for index, part in enumerate(parts):
                if len(part) == 16 and part.isdecimal():
                    parts[index] = str(int(part) + later)
            shutil.copy(path, folder / ".".join(parts))
        trace = read_trace(copy)
        assert "recorded 2 times" in str(trace.problems[0])
        rerun_names = [name for name in trace.ops["name"] if name.endswith("#2")]
        assert len(rerun_names) == len(set(rerun_names)) > 30
        assert trace.source.details["npy_matched"] == (320, 320)


class TestViews:
    """Of each view of a part, the numbers at the start of its memory are dumped."""

    @pytest.fixture
    def recording(self, dump: Callable[[str], Path]) -> Trace:
        return read_trace(dump("ms_views"))

    def test_a_part_has_no_numbers_but_its_edges(self, recording: Trace):
        rows = recording.tensors
        kinds = recording.ops["kind"].to_numpy()[rows["op"]]
        is_part = np.isin(kinds, ["ChunkView", "UnstackExtView", "NarrowView"])
        parts = rows[is_part & (rows["slot_kind"] == "output").to_numpy()]
        assert len(parts) == 8
        assert (parts["file"] == "").all()
        products = rows[(kinds == "Mul") & (rows["slot"] == "input.0").to_numpy()]
        read_parts = products[products["source_tensor"].isin(parts.index)]
        assert len(read_parts) == 4
        assert (read_parts["file"] == "").all()

    def test_the_records_left_out_are_counted(self, recording: Trace):
        (problem,) = recording.problems
        assert "start of its memory" in problem.message
        assert (problem.count, problem.weakens) == (18, False)

    def test_a_view_of_all_of_a_tensor_is_kept(self, recording: Trace):
        of_part = select_slots(recording, "Default/TransposeView-op0").loc["output.0"]
        of_whole = select_slots(recording, "Default/TransposeView-op1").loc["output.0"]
        assert of_part["file"] == ""
        assert of_whole["file"] != ""


@pytest.mark.record
class TestRecordedNow:
    """Hard cases, recorded by the real framework by fixtures/record_mindspore_edges.py."""

    @pytest.fixture
    def edge(self, recorded: Callable[..., Path]) -> Callable[[str], list[Trace]]:
        return lambda case: [
            mindspore.read_part(part)
            for part in readers.list_parts(recorded("mindspore_edges", case))
        ]

    def test_bfloat16(self, edge: Callable[[str], list[Trace]]):
        (trace,) = edge("bfloat16")
        (tensor,) = trace.tensors.index[
            (trace.tensors["dtype"] == "bfloat16") & (trace.tensors["slot_kind"] == "output")
        ]
        x = trace.array(
            trace.tensors["source_tensor"][trace.tensors.index[trace.tensors["op"] == 1][0]]
        )
        assert trace.array(tensor).dtype == np.float32
        np.testing.assert_allclose(trace.array(tensor), x, rtol=2**-8)

    def test_long_names_are_in_mapping_csv(self, edge: Callable[[str], list[Trace]]):
        (trace,) = edge("long_names")
        renamed = trace.tensors["file"].str.fullmatch(r"\d+\.npy")
        assert renamed.sum() >= 3
        assert trace.problems == ()
        assert trace.source.details["npy_matched"] == (12, 12)

    def test_a_loop_records_an_op_several_times(self, edge: Callable[[str], list[Trace]]):
        body = max(edge("loop"), key=lambda trace: len(trace.ops))
        assert body.ops["name"].tolist()[:6] == [
            "Expand/_MatMulExt/MatMul-op0", "Default/Tanh-op0", "Default/Add-op0",
            "Expand/_MatMulExt/MatMul-op0#2", "Default/Tanh-op0#2", "Default/Add-op0#2",
        ]  # fmt: skip
        assert body.problems == ()
        tanh = body.tensors[
            (body.tensors["op"] == 4) & (body.tensors["slot_kind"] == "input")
        ].iloc[0]
        assert body.tensors["op"][tanh["source_tensor"]] == 3

    def test_op_numbers_count_on_from_graph_to_graph(self, edge: Callable[[str], list[Trace]]):
        traces = edge("two_nets")
        assert [(trace.source.graph, trace.source.step) for trace in traces] == [
            (0, 0),
            (0, 1),
            (1, 1),
        ]
        names = [set(trace.ops["name"][trace.ops["kind"] == "ReLU"]) for trace in traces]
        assert names == [{"Default/ReLU-op0"}, {"Default/ReLU-op0"}, {"Default/ReLU-op1"}]
        for trace in traces:
            matched, files = trace.source.details["npy_matched"]
            assert matched == files > 0

    def test_several_outputs(self, edge: Callable[[str], list[Trace]]):
        (trace,) = edge("several_outputs")
        assert trace.source.details["edges_verified"] == (6, 6)
        counts = trace.tensors[trace.tensors["slot_kind"] == "output"].groupby("op").size()
        kinds = trace.ops["kind"]
        assert {kinds[op]: count for op, count in counts.items()}["Split"] == 4

    def test_what_an_optimizer_overwrites_is_its_output(self, edge: Callable[[str], list[Trace]]):
        first, second = edge("momentum")
        update = first.ops.index[first.ops["kind"] == "ApplyMomentum"][0]
        assert first.ops["phase"][update] == "optimizer"
        rows = first.tensors[first.tensors["op"] == update].set_index("slot")
        assert rows["trusted"].to_dict() == {
            "input.0": False, "input.1": False, "input.2": True, "input.3": True, "input.4": True,
            "output.0": True, "output.1": True,
        }  # fmt: skip
        for index in (0, 1):
            new_value = rows.loc[f"output.{index}"]
            assert new_value["file"] == rows.loc[f"input.{index}", "file"]
            assert new_value["update_of"] == rows.loc[f"input.{index}", "parameter"]
        assert rows.loc["input.3", "gradient_of"] == "weight"
        assert (first.tensors["gradient_of"] == "weight").sum() == 2

        def find_weight(trace: Trace, kind: str) -> int:
            weight = (trace.tensors["parameter"] == "weight") & (
                trace.tensors["op"].map(trace.ops["kind"]) == kind
            )
            return trace.tensors.index[weight][0]

        recorded_last = find_weight(first, "Parameter")
        assert not first.tensors["trusted"][recorded_last]
        assert first.tensors["trusted"][find_weight(first, "MatMul")]
        np.testing.assert_array_equal(
            first.array(recorded_last), second.array(find_weight(second, "MatMul"))
        )
        assert not np.array_equal(
            first.array(recorded_last), first.array(find_weight(first, "MatMul"))
        )

    def test_a_rerun_is_reported(self, edge: Callable[[str], list[Trace]]):
        (trace,) = edge("rerun")
        assert "recorded 2 times" in str(trace.problems[0])

    @pytest.mark.parametrize("style", ["cell", "jit"])
    def test_a_whole_step_with_adam(self, recorded: Callable[..., Path], style: str):
        trace = read_trace(
            recorded("mindspore", "--optimizer", "--style", style, "--dtype", "fp16")
        )
        assert trace.problems == ()
        for name in ("npy_matched", "edges_verified"):
            count, total = trace.source.details[name]
            assert count == total > 500
        weights = set(trace.tensors["gradient_of"]) - {""}
        assert len(weights) == trace.ops["kind"].eq("Adam").sum()


class TestUpdates:
    """What an op overwrites is dumped as after the op: it is an output of the op."""

    def test_a_parameter_that_a_written_out_update_overwrites_is_not_trusted_as_before_it(
        self, dump: Callable[[str], Path]
    ):
        recording = read_trace(dump("ms_update_assign_sub"))
        tensors, kinds = recording.tensors, recording.ops["kind"]
        kind_of_tensor = kinds.to_numpy()[tensors["op"]]
        parameter = tensors[
            (kind_of_tensor == "Parameter") & (tensors["parameter"] == "first.weight")
        ]
        assert not parameter["trusted"].any()
        read_before = tensors[
            (kind_of_tensor == "MatMul") & (tensors["parameter"] == "first.weight")
        ]
        assert read_before["trusted"].all()
        (new_row,) = np.flatnonzero(tensors["update_of"] == "first.weight")
        assert kind_of_tensor[new_row] == "AssignSub"
        after, at_the_end = recording.array(new_row), recording.array(parameter.index[0])
        assert np.array_equal(after, at_the_end)
        assert not np.array_equal(after, recording.array(read_before.index[0]))

    def test_a_written_out_update_and_its_clipping_are_the_optimizers(
        self, dump: Callable[[str], Path]
    ):
        ops = read_trace(dump("ms_update_assign_sub")).ops
        kinds = ops["kind"][ops["phase"] == "optimizer"]
        assert {"AssignSub", "Mul", "AddN", "Sqrt", "Minimum"} <= set(kinds)

    def test_a_named_gradient_is_the_one_before_clipping(self, dump: Callable[[str], Path]):
        recording = read_trace(dump("ms_update_adam"))
        (row,) = np.flatnonzero(recording.tensors["gradient_of"] == "first.weight")
        op = recording.tensors["op"].iat[row]
        assert recording.ops["phase"].iat[op] == "backward"

    def test_running_statistics_are_outputs_of_a_batch_norm_in_training(
        self, dump: Callable[[str], Path]
    ):
        recording = read_trace(dump("ms_update_adam"))
        rows = recording.tensors
        batch_norm = rows[recording.ops["kind"].to_numpy()[rows["op"]] == "BatchNorm"]
        slots = batch_norm.set_index("slot")
        assert not slots.loc["input.3", "trusted"]
        assert slots.loc["output.5", "update_of"] == "norm.moving_mean"
        assert slots.loc["output.6", "update_of"] == "norm.moving_variance"
