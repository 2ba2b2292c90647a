"""ptdbg_ascend dumps of every format variant, as recorded, and damaged ones."""

import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dumpdiff import readers
from dumpdiff.model.errors import DumpError
from dumpdiff.model.trace import Trace
from readers.single_traces import read_trace, select_slots

Dump = Callable[[str], Path]


def write_dump(folder: Path, *lines: object) -> Path:
    """Write a dump of these lines: a text as it is, any other value as JSON."""
    file = folder / "dump.pkl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_text("".join(f"{text}\n" for text in texts))
    return file


@pytest.mark.parametrize(
    ("name", "format_variant", "ops", "tensors"),
    [
        ("v1.0_api_stack", "1.0 to 4.0.T1", 357, 859),
        ("v4.0.T2_api_stack", "4.0.T2 to 5.0", 379, 983),
        ("v6.0_api_stack", "6.0", 379, 1004),
        ("v6.0_api_stack_summary", "6.0", 379, 1004),
        ("v6.0_api_stack_md5", "6.0", 379, 1004),
    ],
)
def test_each_era_is_recognized_by_its_lines_and_read_completely(
    dump: Dump, name: str, format_variant: str, ops: int, tensors: int
):
    trace = read_trace(dump(name))

    assert trace.source.format_variant.startswith(format_variant)
    assert (trace.source.format, trace.source.framework) == ("ptdbg", "pytorch")
    assert (len(trace.ops), len(trace.tensors)) == (ops, tensors)
    assert trace.problems == ()


@pytest.mark.parametrize("depth", range(4))
def test_run_root_step_rank_folder_and_file_are_all_accepted(dump: Dump, depth: int):
    root = dump("v6.0_api_stack_summary")
    file = next(root.rglob("*.pkl"))
    (part,) = readers.find_parts([root, *file.parents[:3]][depth] if depth < 3 else file)

    assert (part.format, part.step, part.process, part.path.name) == (
        "ptdbg",
        0,
        109002,
        "api_stack_dump.pkl",
    )
    assert part.rank is None  # the recorder had no rank and wrote the process id


def test_statistics_are_those_of_the_whole_tensors(dump: Dump):
    trace = read_trace(dump("v6.0_api_stack"))

    assert (trace.tensors["file"] != "").all()
    for row in range(0, len(trace.tensors), 20):
        array = trace.array(row).astype(np.float64)
        tensor = trace.tensors.iloc[row]
        assert array.size == tensor["size"]
        np.testing.assert_allclose(
            [array.max(), array.min(), array.mean()],
            [tensor["max"], tensor["min"], tensor["mean"]],
            rtol=1e-5,
            atol=1e-6,
        )
        if not math.isnan(tensor["norm"]):
            assert tensor["norm"] == pytest.approx(np.linalg.norm(array), rel=1e-5)


def test_an_op_has_its_kind_slots_line_and_stack(dump: Dump):
    trace = read_trace(dump("v6.0_api_stack_summary"))
    op = trace.ops[trace.ops["name"] == "Functional.linear.0.forward"].iloc[0]

    assert (op["kind"], op["phase"], op["level"]) == ("Functional.linear", "forward", "op")
    assert op["source"] == "model_pt.py:46"
    assert op["stack"].splitlines()[:2] == [
        "model_pt.py:46 forward: q = self.wq(x).view(b, s, self.n, self.d).transpose(1, 2)",
        "model_pt.py:79 forward: h = x + self.attention(self.input_norm(x), cos, sin, mask)",
    ]
    assert "/" not in "".join(
        line.split(" ")[0] for line in op["stack"].splitlines()
    )  # no folders of the user's
    assert list(select_slots(trace, "Functional.linear.0.forward").index) == [
        "input.0",
        "input.1",
        "output.0",
    ]


def test_names_of_the_underscore_eras_have_the_same_kinds(dump: Dump):
    old, new = read_trace(dump("v4.0.T2_api_stack")), read_trace(dump("v6.0_api_stack"))

    assert "Tensor.__mul__" in set(old.ops["kind"])
    assert old.ops["kind"].tolist() == new.ops["kind"].tolist()


def test_backward_is_linked_to_its_forward_call(dump: Dump):
    ops = read_trace(dump("v6.0_api_stack_summary")).ops
    linked = ops[ops["forward"] >= 0]

    forward_names = ops["name"].to_numpy()[linked["forward"].to_numpy()]
    assert [
        name.replace("backward", "forward") for name in linked["name"]
    ] == forward_names.tolist()
    seed = ops[(ops["phase"] == "backward") & (ops["forward"] < 0)]
    assert seed["kind"].tolist() == ["Torch.ones_like"]


def test_backward_output_is_trusted_only_where_it_can_be_the_gradient_of_the_input(dump: Dump):
    trace = read_trace(dump("v6.0_api_stack_summary"))

    linear = select_slots(trace, "Functional.linear.28.backward")
    assert linear.loc["input.0", "trusted"]
    assert not linear.loc["output.0", "trusted"]  # [32, 128]: the gradient that came in, reshaped
    product = select_slots(trace, "Tensor.__mul__.20.backward")
    assert product["trusted"].all()


def test_python_scalars_are_constants_with_their_value(dump: Dump):
    embedding = select_slots(
        read_trace(dump("v6.0_api_stack_summary")), "Functional.embedding.0.forward"
    )

    norm_type, flag = embedding.loc["input.4"], embedding.loc["input.5"]
    assert (norm_type["dtype"], norm_type["shape"], norm_type["max"], norm_type["constant"]) == (
        "float",
        (),
        2.0,
        True,
    )
    assert (flag["dtype"], flag["max"], flag["constant"]) == ("bool", 0.0, True)
    assert list(embedding.index) == [
        "input.0",
        "input.1",
        "input.4",
        "input.5",
        "input.6",
        "output.0",
    ]  # None: no line


def test_norm_that_was_not_computed_is_absent_and_not_nan_data(dump: Dump):
    ids = select_slots(
        read_trace(dump("v6.0_api_stack_summary")), "Functional.embedding.0.forward"
    ).loc["input.0"]

    assert (ids["dtype"], ids["max"], ids["nonfinite"]) == ("int64", 121.0, 0)
    assert math.isnan(ids["norm"])


def test_checksums_come_without_statistics(dump: Dump):
    trace = read_trace(dump("v6.0_api_stack_md5"))
    tensors = trace.tensors[~trace.tensors["constant"]]

    assert (tensors["hash"].str.len() == 8).all()
    assert tensors["max"].isna().all()
    assert (tensors["nonfinite"] == -1).all()
    assert trace.source.details["task"] == "md5"


@pytest.fixture(scope="module", name="trace")
def read_odd_calls(dump: Dump) -> Trace:
    return read_trace(dump("edge_v6.0_all_filterOFF"))


class TestSpecialValues:
    """A real recording of unusual calls."""

    def test_nan_and_infinity_are_nonfinite(self, trace: Trace):
        assert select_slots(trace, "Tensor.__mul__.4.forward").loc["input.0", "nonfinite"] == 1
        masked = select_slots(trace, "Tensor.masked_fill.0.forward").loc["output.0"]
        assert (masked["max"], masked["min"], masked["nonfinite"]) == (3.0, -math.inf, 1)

    def test_bool_and_empty_tensors_have_no_statistics(self, trace: Trace):
        compared = select_slots(trace, "Tensor.__gt__.0.forward").loc["output.0"]
        empty = select_slots(trace, "Tensor.__mul__.3.forward").loc["input.0"]

        assert (compared["dtype"], compared["nonfinite"]) == ("bool", -1)
        assert (empty["shape"], empty["size"], empty["nonfinite"]) == ((0, 4), 0, -1)
        assert math.isnan(compared["max"])
        assert math.isnan(empty["max"])

    def test_float64_beyond_float32_is_unknown_and_not_infinite(self, trace: Trace):
        wide = select_slots(trace, "Tensor.__add__.6.forward").loc["input.0"]

        assert (wide["dtype"], wide["nonfinite"]) == ("float64", -1)
        assert math.isnan(wide["max"])

    def test_a_single_element_has_its_magnitude_for_norm(self, trace: Trace):
        total = select_slots(trace, "Tensor.__add__.0.forward").loc["output.0"]

        assert (total["shape"], total["norm"]) == ((), 28.0)

    @pytest.mark.parametrize("op", ["Tensor.add_.0", "Tensor.__setitem__.0", "Tensor.__iadd__.0"])
    def test_inputs_of_in_place_calls_hold_the_result(self, trace: Trace, op: str):
        assert not select_slots(trace, f"{op}.forward").loc["input.0", "trusted"]

    def test_several_outputs_and_nested_inputs_keep_their_places(self, trace: Trace):
        assert [
            slot for slot in select_slots(trace, "Torch.topk.0.forward").index if "output" in slot
        ] == [
            "output.0",
            "output.1",
        ]
        assert "input.1.1" in select_slots(trace, "Tensor.__setitem__.1.forward").index

    def test_a_checkpointed_call_runs_a_second_time_inside_backward(self, trace: Trace):
        recomputed_names = trace.ops[trace.ops["recomputed"]]["name"].tolist()

        assert recomputed_names == [
            "Tensor.__mul__.19.forward",
            "Torch.sigmoid.1.forward",
            "Tensor.__mul__.21.forward",
        ]


def test_the_optimizer_step_is_recognized_by_its_stack(dump: Dump):
    trace = read_trace(dump("v6.0_opt_1step"))

    assert set(trace.ops[trace.ops["phase"] == "optimizer"]["kind"]) == {"Tensor.add_"}
    assert (trace.ops["phase"] == "optimizer").sum() == 39
    update = select_slots(trace, "Tensor.add_.0.forward")
    assert not update.loc["input.0", "trusted"]  # recorded after the update
    assert update.loc["input.1", "trusted"]  # the gradient


def test_each_rank_is_a_part_and_collectives_are_communication(dump: Dump):
    parts = readers.find_parts(dump("v6.0_dist"))
    trace = readers.read_part(parts[0])

    assert [part.rank for part in parts] == [0, 1]
    assert not any(part.is_unranked for part in parts)
    collectives = trace.ops[trace.ops["phase"] == "communication"]["kind"]
    assert "Distributed.all_reduce" in set(collectives)
    assert len(collectives) == 5
    assert (
        select_slots(trace, "Distributed.all_gather.0.forward").loc["input.0.1", "slot_kind"]
        == "input"
    )


def test_module_records_carry_their_path_and_class(dump: Dump):
    ops = read_trace(dump("v6.0_initmodel_api_stack")).ops
    norm = ops[ops["name"] == "layers.0.input_norm.RMSNorm.0.forward"].iloc[0]

    assert (norm["level"], norm["kind"], norm["scope"]) == (
        "module",
        "Module.RMSNorm",
        "layers.0.input_norm",
    )
    assert set(ops["level"]) == {"module"}


def test_missing_tensor_files_are_one_counted_problem(dump: Dump):
    trace = read_trace(dump("v6.0_module_dump"))
    assert trace.problems == ()

    (part,) = readers.find_parts(dump("v6.0_module_dump"))
    removed_files = sorted((part.path.parent / part.path.stem).glob("*.npy"))[:2]
    contents = [file.read_bytes() for file in removed_files]
    for file in removed_files:
        file.unlink()
    try:
        damaged_trace = readers.read_part(part)
    finally:
        for file, content in zip(removed_files, contents, strict=True):
            file.write_bytes(content)
    (problem,) = damaged_trace.problems
    assert problem.count == 2
    assert "missing" in problem.message


def test_user_named_module_dump_is_a_module(dump: Dump):
    ops = read_trace(dump("v6.0_module_dump")).ops

    assert ops[ops["name"] == "MyBlock1.0.forward"][["kind", "level", "scope"]].values.tolist() == [
        ["Module.MyBlock1", "module", ""]
    ]


class TestDamage:
    """A real file that two processes wrote, and files that are cut and damaged here."""

    def test_whole_records_are_salvaged_and_the_rest_is_counted_with_line_numbers(self, dump: Dump):
        trace = read_trace(dump("v2.0_corrupt_2proc"))

        counts = {problem.message.split(";")[0]: problem.count for problem in trace.problems}
        assert counts["damaged: not one JSON list, skipped"] == 347
        assert counts["damaged: not one JSON list"] == 61  # '; whole records in it were used'
        assert counts["names with different records: several processes wrote this dump"] == 484
        assert all(problem.weakens for problem in trace.problems)
        assert trace.problems[0].line == 25
        assert "lines 25, 29, 47" in trace.problems[0].message
        assert len(trace.tensors) > 1300

    def test_the_second_of_two_different_records_is_a_call_of_its_own(self, dump: Dump):
        ops = read_trace(dump("v2.0_corrupt_2proc")).ops

        assert ops["name"].is_unique
        assert ops["name"].str.endswith("#2").sum() > 100

    def test_a_repeated_line_with_the_same_data_adds_nothing(self, tmp_path: Path):
        line = ["Tensor.add.0.forward.output", 0, [], "torch.float32", [2], [1.0, 0.0, 0.5, 1.0]]
        trace = read_trace(write_dump(tmp_path, line, line))

        assert trace.ops["name"].tolist() == ["Tensor.add.0.forward"]
        assert len(trace.tensors) == 1

    def test_a_cut_last_line_costs_only_itself(self, dump: Dump, tmp_path: Path):
        text = next(dump("v6.0_api_stack_summary").rglob("*.pkl")).read_text()
        file = tmp_path / "dump.pkl"
        file.write_text(text[: len(text) // 2])
        trace = read_trace(file)

        assert [problem.count for problem in trace.problems] == [1]
        assert len(trace.tensors) == 392

    def test_lines_of_another_kind_are_counted(self, tmp_path: Path):
        trace = read_trace(
            write_dump(
                tmp_path,
                ["Tensor.add.0.forward.output", 0, [], "torch.float32", [2], [1.0, 0.0, 0.5, 1.0]],
                [
                    "pre_forward.input.0",
                    0,
                    [],
                    "torch.float32",
                    [2],
                    [1.0, 0.0, 0.5, 1.0],
                ],  # 6.0 writes this
                {"something": "else"},
                "",
            )
        )

        assert len(trace.tensors) == 1
        assert [problem.line for problem in trace.problems] == [2, 3]

    def test_brackets_without_end_and_endless_digits_are_damage(self, tmp_path: Path):
        whole_line = [
            "Tensor.add.0.forward.output",
            0,
            [],
            "torch.float32",
            [2],
            [1.0, 0.0, 0.5, 1.0],
        ]
        digits = (
            '["Tensor.add.1.forward.output", 0, [], "torch.float32", [2], ['
            + "9" * 5000
            + ", 0, 0, 0]]"
        )
        trace = read_trace(write_dump(tmp_path, whole_line, "[" * 100_000, digits))

        assert len(trace.tensors) == 1
        assert sum(problem.count for problem in trace.problems) == 2

    def test_a_line_that_is_too_long_is_skipped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("dumpdiff.readers.ptdbg.lines.MAX_LINE_LENGTH", 200)
        whole_line = [
            "Tensor.add.0.forward.output",
            0,
            [],
            "torch.float32",
            [2],
            [1.0, 0.0, 0.5, 1.0],
        ]
        trace = read_trace(
            write_dump(
                tmp_path,
                whole_line,
                ["Tensor.add.1.forward.output", 0, [], "torch.float32", [1] * 500, []],
                whole_line,
            )
        )

        assert len(trace.tensors) == 1
        assert [(problem.line, "longer than" in problem.message) for problem in trace.problems] == [
            (2, True)
        ]

    def test_a_real_pickle_is_refused_as_a_file_and_in_a_folder(self, tmp_path: Path):
        file = tmp_path / "dump.pkl"
        file.write_bytes(pickle.dumps({"a": 1}))

        for path in (file, tmp_path):
            with pytest.raises(DumpError, match="real pickle; not read"):
                readers.find_parts(path)

    def test_a_name_cannot_lead_out_of_the_folder(self, tmp_path: Path):
        (tmp_path / "dump").mkdir()
        np.save(tmp_path / "dump" / "Tensor.add.0.forward.output.npy", np.zeros(2))
        np.save(tmp_path / "secret.npy", np.zeros(2))
        trace = read_trace(
            write_dump(
                tmp_path,
                ["Tensor.add.0.forward.output", 0, [], "torch.float32", [2], [0.0, 0.0, 0.0, 0.0]],
                [
                    "../secret.Tensor.add.0.forward.output",
                    0,
                    [],
                    "torch.float32",
                    [2],
                    [0.0, 0.0, 0.0, 0.0],
                ],
            )
        )

        assert trace.tensors["file"].tolist() == ["dump/Tensor.add.0.forward.output.npy", ""]
        with pytest.raises(DumpError, match="outside"):
            trace.load("../secret.npy")


class TestPrototypes:
    """Lines as the first versions wrote them; no whole dump of these versions is available."""

    def test_whole_tensors_in_the_line_are_measured(self, tmp_path: Path):
        name = "Torch_embedding_forward_output"
        trace = read_trace(
            write_dump(
                tmp_path,
                [name, [3.0, -4.0], "torch.float32", [2]],
                [name, [1.0, 2.0], "torch.float32", [2]],
            )
        )

        assert trace.source.format_variant.startswith("prototype of 2022")
        assert trace.ops["name"].tolist() == [
            "Torch_embedding_forward",
            "Torch_embedding_forward#2",
        ]
        assert trace.tensors[["max", "min", "mean", "norm"]].values.tolist()[0] == [
            3.0,
            -4.0,
            -0.5,
            5.0,
        ]

    def test_calls_numbered_through(self, tmp_path: Path):
        trace = read_trace(
            write_dump(
                tmp_path,
                ["0_Torch_embedding_forward_input.0", 1, [], "torch.float32", [2], [1.0, 0.0, 0.5]],
            )
        )

        assert trace.ops["kind"].tolist() == ["Torch.embedding"]
        assert "early 2023" in trace.source.format_variant

    def test_exchanged_backward_is_corrected(self, dump: Dump, tmp_path: Path):
        """Before 2023-02-27 backward input and output were swapped: a real dump, swapped again."""
        text = next(dump("v1.0_api_stack").rglob("*.pkl")).read_text()
        file = tmp_path / "dump.pkl"
        old = text.replace("backward_input", "backward_?").replace(
            "backward_output", "backward_input"
        )
        file.write_text(old.replace("backward_?", "backward_output"))
        trace = read_trace(file)
        expected_trace = read_trace(dump("v1.0_api_stack"))

        assert "exchanged" in trace.source.format_variant
        pd.testing.assert_frame_equal(
            trace.tensors.drop(columns="file"), expected_trace.tensors.drop(columns="file")
        )

    def test_overflow_lines_have_no_statistics(self, tmp_path: Path):
        trace = read_trace(
            write_dump(
                tmp_path, "", ["Torch_matmul_3_forward_output", 101, [], "torch.float16", [2, 2]]
            )
        )

        assert trace.tensors["max"].isna().all()
        assert "overflow" in trace.source.format_variant

    def test_eight_items_of_the_troubleshooter(self, tmp_path: Path):
        md5 = "32c152c909ba24c2ecf9d2ca9a539ac4"
        line = ["NN_Linear_0_forward_output", 1, [], "Float32", [2], [1.0, -1.0, 0.0], md5, 1.5]
        trace = read_trace(
            write_dump(
                tmp_path,
                line,
                ["LAYER_embedding_forward_input", 1, [], "Float32", [1], [0, 0, 0], md5, 0],
            )
        )

        assert trace.source.framework == "mindspore"
        assert trace.tensors.iloc[0][["hash", "norm", "dtype"]].tolist() == [md5, 1.5, "float32"]
