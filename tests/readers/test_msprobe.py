"""msprobe dumps of PyTorch and MindSpore: as recorded, in older formats, and damaged."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dumpdiff import readers
from dumpdiff.model.errors import DumpError
from dumpdiff.model.trace import Trace
from dumpdiff.readers.msprobe.entries import collect_entries
from readers.single_traces import find_single_part, read_trace, select_slots

Dump = Callable[[str], Path]


@pytest.fixture(scope="module", name="pytorch")
def clean_pytorch(dump: Dump) -> Trace:
    return read_trace(dump("pt_none"))


@pytest.fixture(scope="module", name="mindspore")
def clean_mindspore(dump: Dump) -> Trace:
    return read_trace(dump("ms_mf_none"))


def copy_dump(dump: Path, folder: Path) -> Path:
    """Return the dump.json of a copy whose files may be changed."""
    shutil.copytree(dump, folder / "dump")
    return next((folder / "dump").rglob("dump.json"))


def write_dump(folder: Path, data: dict[str, Any], **header: Any) -> Path:
    """Write a dump.json with these entries."""
    file = folder / "dump.json"
    file.write_text(json.dumps({"task": "tensor", "level": "L1", **header, "data": data}))
    return file


def make_tensor(*shape: int, **fields: Any) -> dict[str, Any]:
    """Return the record of a tensor."""
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape),
        "Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": 2.0, **fields,
    }  # fmt: skip


def make_call(*arguments: Any, output: Any = None, **keywords: Any) -> dict[str, Any]:
    """Return the entry of a call."""
    return {"input_args": list(arguments), "input_kwargs": keywords, "output": [output]}


def test_both_frameworks_are_read_completely(pytorch: Trace, mindspore: Trace):
    assert (pytorch.source.framework, mindspore.source.framework) == ("pytorch", "mindspore")
    assert (len(pytorch.ops), len(mindspore.ops)) == (351, 584)  # every entry of dump.json
    assert pytorch.problems == mindspore.problems == ()
    assert pytorch.source.format_variant == "26.2 or later (statistics, level mix)"


def test_step_and_process_come_from_the_folders(dump: Dump):
    part = find_single_part(dump("pt_none"))

    assert (part.step, part.rank, part.process, part.has_whole_tensors) == (0, None, 17620, False)
    assert readers.find_parts(part.path) == readers.find_parts(part.path.parent) == [part]


@pytest.mark.parametrize("number", [0, 57, 473, 999, 1000, 17620])
def test_a_process_is_not_a_rank_even_with_a_small_id(number: int, tmp_path: Path):
    """In a container the ids of processes begin at 1."""
    folder = tmp_path / "step0" / f"proc{number}"
    folder.mkdir(parents=True)
    write_dump(
        folder, {"Functional.relu.0.forward": make_call(make_tensor(2), output=make_tensor(2))}
    )
    part = find_single_part(tmp_path)

    assert (part.rank, part.process, part.rank_or_process) == (None, number, number)
    assert (readers.read_part(part).source.rank, readers.read_part(part).source.process) == (
        None,
        number,
    )
    assert f"process {number}" in str(part)
    assert readers.choose_parts([part], [replace(part, rank=2)])[1].rank == 2


def test_a_folder_of_a_rank_goes_before_one_of_a_process(tmp_path: Path):
    folder = tmp_path / "rank3" / "proc473"
    folder.mkdir(parents=True)
    write_dump(
        folder, {"Functional.relu.0.forward": make_call(make_tensor(2), output=make_tensor(2))}
    )
    part = find_single_part(tmp_path)

    assert (part.rank, part.process, part.rank_or_process) == (3, None, 3)


def test_kinds_are_spelled_as_the_framework_does(pytorch: Trace, mindspore: Trace):
    assert {
        "Functional.linear",
        "Tensor.__add__",
        "Torch.matmul",
        "Module.Linear",
        "parameters_grad",
    } <= set(pytorch.ops["kind"])
    assert {"Primitive.MatMul", "Functional.softmax", "Cell.Dense", "Tensor.__mul__"} <= set(
        mindspore.ops["kind"]
    )
    assert set(mindspore.tensors["dtype"]) == {"float32", "int32", "int", "float"}


def test_modules_give_their_calls_a_parent_and_a_scope(pytorch: Trace):
    ops = pytorch.ops
    linear = ops[ops["name"] == "Functional.linear.0.forward"].iloc[0]

    assert linear["scope"] == "model.layers.0.self_attn.q_proj"
    assert (
        ops["name"][linear["parent"]] == "Module.model.layers.0.self_attn.q_proj.Linear.forward.0"
    )
    assert (linear["source"], linear["phase"]) == ("pt_model.py:18", "forward")


def test_parameters_have_their_full_name_also_where_an_api_call_reads_them(
    pytorch: Trace, mindspore: Trace
):
    parameter = select_slots(
        pytorch, "Module.model.layers.0.self_attn.q_proj.Linear.forward.0"
    ).loc["parameter.weight"]
    api_input = select_slots(pytorch, "Functional.linear.0.forward").loc["input.1"]
    primitive = select_slots(mindspore, "Primitive.matmul.MatMul.0.forward").loc["input.1"]

    assert (parameter["slot_kind"], parameter["parameter"]) == (
        "parameter",
        "model.layers.0.self_attn.q_proj.weight",
    )
    assert (api_input["slot_kind"], api_input["parameter"]) == (
        "input",
        "model.layers.0.self_attn.q_proj.weight",
    )
    assert primitive["parameter"] == "model.layers.0.attention.wq.weight"


def test_parameter_gradients_are_named_and_trusted(pytorch: Trace, mindspore: Trace):
    name = "Module.model.layers.3.mlp.down_proj.Linear.parameters_grad.0"
    gradient = select_slots(pytorch, name).loc["output.weight"]
    op = pytorch.ops[pytorch.ops["name"] == name].iloc[0]

    assert (gradient["slot_kind"], gradient["gradient_of"]) == (
        "output",
        "model.layers.3.mlp.down_proj.weight",
    )
    assert gradient["trusted"]
    assert (op["kind"], op["phase"], op["level"]) == ("parameters_grad", "backward", "op")
    assert (
        pytorch.ops["name"][op["forward"]] == "Module.model.layers.3.mlp.down_proj.Linear.forward.0"
    )
    named = mindspore.tensors["gradient_of"]
    assert "model.tok_embeddings.embedding_table" in set(named)


def test_backward_outputs_of_pytorch_calls_are_not_trusted_but_those_of_modules_and_mindspore_are(
    pytorch: Trace, mindspore: Trace
):
    assert not select_slots(pytorch, "Functional.linear.28.backward").loc[
        "output.0", "trusted"
    ]  # [64, 256]: what came in
    assert select_slots(pytorch, "Module.model.layers.0.mlp.LlamaMLP.backward.0")["trusted"].all()
    assert select_slots(mindspore, "Functional.matmul.2.backward")["trusted"].all()


@pytest.mark.parametrize("n_gradients", [1, 2])
def test_a_call_with_more_gradients_than_inputs_ends_in_another_function(
    tmp_path: Path, n_gradients: int
):
    """x / norm(x) ends in a division: its two gradients are not that of x."""
    x = make_tensor(6, 5, Max=2.0, Min=-2.0, Mean=0.1, Norm=8.0)
    gradients = [
        make_tensor(6, 5, Max=1.0 + number, Min=-1.0, Mean=0.0, Norm=4.0)
        for number in range(n_gradients)
    ]
    calls = {
        "Functional.normalize.0.forward": make_call(x, output=x),
        "Functional.normalize.0.backward": {
            "input": [make_tensor(6, 5, Max=3.0, Min=-3.0, Mean=0.2, Norm=9.0)],
            "output": gradients,
        },
    }
    trace = read_trace(write_dump(tmp_path, calls))
    rows = trace.tensors[trace.tensors["slot_kind"] == "output"].iloc[1:]
    assert rows["trusted"].tolist() == ([True] if n_gradients == 1 else [False, False])


@pytest.mark.parametrize(("factor", "is_trusted"), [(1.0, False), (2.0, True)])
def test_the_gradients_of_a_product_of_a_value_with_itself_are_shares(
    tmp_path: Path, factor: float, is_trusted: bool
):
    x = make_tensor(6, 5, Max=2.0, Min=-2.0, Mean=0.1, Norm=8.0)
    other = make_tensor(6, 5, Max=2.0 * factor, Min=-2.0, Mean=0.1, Norm=8.0)
    gradient = make_tensor(6, 5, Max=1.0, Min=-1.0, Mean=0.0, Norm=4.0)
    calls = {
        "Tensor.__mul__.0.forward": make_call(x, other, output=x),
        "Tensor.__mul__.0.backward": {
            "input": [make_tensor(6, 5, Max=3.0, Min=-3.0, Mean=0.2, Norm=9.0)],
            "output": [gradient, gradient],
        },
    }
    trace = read_trace(write_dump(tmp_path, calls))
    rows = trace.tensors[trace.tensors["slot_kind"] == "output"].iloc[1:]
    assert rows["trusted"].tolist() == [is_trusted, is_trusted]


def test_inputs_of_in_place_updates_are_recorded_before_the_call(pytorch: Trace):
    optimizer = pytorch.ops[pytorch.ops["phase"] == "optimizer"]

    assert set(optimizer["kind"]) == {"Tensor.add_"}
    assert len(optimizer) == 48
    update = select_slots(pytorch, "Tensor.add_.0.forward")
    assert update["trusted"].all()
    assert update.loc["input.alpha", ["max", "norm", "constant", "dtype"]].tolist() == [
        -0.05,
        0.05,
        True,
        "float",
    ]


def test_keyword_arguments_keep_their_name_and_lists_their_places(pytorch: Trace, mindspore: Trace):
    assert select_slots(pytorch, "Functional.softmax.0.forward").loc["input.dim", "max"] == -1
    reshaped = select_slots(mindspore, "Primitive.reshape.Reshape.31.forward")
    assert reshaped.loc[["input.1.0", "input.1.1"], "max"].tolist() == [-1, 64]


def test_whole_tensors_are_loaded(dump: Dump):
    trace = read_trace(dump("demo_pytorch"))
    rows = np.flatnonzero(trace.tensors["file"] != "")

    assert len(rows) > 500
    for row in rows[::40].tolist():
        array, tensor = trace.array(row), trace.tensors.iloc[row]
        assert array.shape == tensor["shape"]
        assert float(array.max()) == pytest.approx(tensor["max"])


@pytest.mark.parametrize("name", ["checksum", "structure"])
def test_tasks_without_statistics(tmp_path: Path, name: str):
    leaf = {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": [2, 2]}
    if name == "checksum":
        leaf["md5"] = "6d2a0ff1"
    trace = read_trace(
        write_dump(
            tmp_path, {"Torch.add.0.forward": make_call(leaf, output=leaf)}, framework="pytorch"
        )
    )

    assert trace.tensors["hash"].tolist() == ["6d2a0ff1" if name == "checksum" else ""] * 2
    assert trace.tensors["max"].isna().all()
    assert (trace.tensors["nonfinite"] == -1).all()


def test_nonfinite_statistics_and_odd_leaves(tmp_path: Path):
    odd = [
        make_tensor(2, Max=float("nan"), Min=float("nan")), None, {"type": "str", "value": "mean"},
        {"type": "slice", "value": [0, 1, None]}, [[make_tensor(3)]],
        {"type": "unheard of"}, "text", 3,
    ]  # fmt: skip
    trace = read_trace(
        write_dump(tmp_path, {"Torch.add.0.forward": make_call(*odd, output=make_tensor(2))})
    )

    assert trace.tensors["slot"].tolist() == ["input.0", "input.4.0.0", "output.0"]
    assert trace.tensors["nonfinite"].tolist() == [1, 0, 0]


class TestOlderVersions:
    """Their documented differences, applied to a real dump of 26.2."""

    def test_before_1_3_the_framework_is_recognized_by_the_names(self, dump: Dump, tmp_path: Path):
        for name, framework in (("pt_none", "pytorch"), ("ms_mf_none", "mindspore")):
            file = copy_dump(dump(name), tmp_path / name)
            content = json.loads(file.read_text())
            del content["framework"]
            file.write_text(json.dumps(content))

            assert read_trace(file).source.framework == framework
            assert read_trace(file).source.format_variant.startswith("before 1.3")

    def test_stacks_of_one_name_each(self, dump: Dump, tmp_path: Path, pytorch: Trace):
        file = copy_dump(dump("pt_none"), tmp_path)
        shared = json.loads((file.parent / "stack.json").read_text())
        single = {name: frames for names, frames in shared.values() for name in names}
        (file.parent / "stack.json").write_text(json.dumps(single))

        assert read_trace(file).ops["source"].tolist() == pytorch.ops["source"].tolist()

    def test_parameter_gradients_reserved_in_the_forward_part_move_behind_backward(
        self, dump: Dump, tmp_path: Path
    ):
        file = copy_dump(dump("pt_none"), tmp_path)
        content = json.loads(file.read_text())
        name = "Module.model.layers.0.mlp.down_proj.Linear"
        gradient = content["data"].pop(f"{name}.parameters_grad.0")
        entries = {}
        for key, entry in content["data"].items():
            entries[key] = entry
            if key == f"{name}.forward.0":
                entries[f"{name}.parameters_grad"] = gradient
        file.write_text(json.dumps({**content, "data": entries}))

        names = read_trace(file).ops["name"].tolist()
        assert names.index(f"{name}.parameters_grad") == names.index(f"{name}.backward.0") + 1

    def test_recomputed_calls_are_marked_by_the_recorder(self, dump: Dump, tmp_path: Path):
        file = copy_dump(dump("pt_none"), tmp_path)
        content = json.loads(file.read_text())
        for name, entry in content["data"].items():
            if "input_args" in entry:
                entry["is_recompute"] = name == "Torch.matmul.3.forward"
        file.write_text(json.dumps(content))

        trace = read_trace(file)
        assert trace.ops["name"][trace.ops["recomputed"]].tolist() == ["Torch.matmul.3.forward"]

    def test_grad_input_and_grad_output_of_1_0_are_recognized_by_their_shapes(
        self, dump: Dump, tmp_path: Path, pytorch: Trace
    ):
        file = copy_dump(dump("pt_none"), tmp_path)
        content = json.loads(file.read_text())
        for entry in content["data"].values():
            if "input" in entry:
                entry["grad_output"], entry["grad_input"] = entry.pop("input"), entry.pop("output")
        file.write_text(json.dumps(content))

        old = read_trace(file).tensors.sort_values(["op", "slot"], ignore_index=True)
        pd.testing.assert_frame_equal(
            old, pytorch.tensors.sort_values(["op", "slot"], ignore_index=True)
        )

    def test_level_l1_has_no_modules(self, dump: Dump, tmp_path: Path):
        file = copy_dump(dump("pt_none"), tmp_path)
        (file.parent / "construct.json").write_text("{}")
        content = json.loads(file.read_text())
        content["data"] = {
            key: entry for key, entry in content["data"].items() if not key.startswith("Module.")
        }
        file.write_text(json.dumps(content))

        trace = read_trace(file)
        assert set(trace.ops["level"]) == {"op"}
        assert (trace.ops["phase"] == "optimizer").sum() == 48  # by their stacks


class TestWrongInput:
    def test_a_cut_file_keeps_its_complete_entries(self, dump: Dump, tmp_path: Path):
        file = copy_dump(dump("pt_none"), tmp_path)
        text = file.read_text()
        file.write_text(text[: len(text) // 2])
        trace = read_trace(file)

        (problem,) = trace.problems
        assert "cut short" in problem.message
        assert problem.line is not None
        assert 100 < len(trace.ops) < 250
        assert trace.source.framework == "pytorch"

    def test_a_damaged_entry_costs_only_itself(self, dump: Dump, tmp_path: Path):
        file = copy_dump(dump("pt_none"), tmp_path)
        text = file.read_text()
        file.write_text(
            text.replace('"Functional.linear.7.forward": {', '"Functional.linear.7.forward": {,', 1)
        )
        trace = read_trace(file)

        damage, loss = trace.problems
        assert damage.message.startswith("damaged entry skipped")
        assert loss.op == "Functional.linear.7.forward"
        assert damage.weakens
        assert loss.weakens
        assert len(trace.ops) == 350

    @pytest.mark.parametrize(
        "name", ["Functional.linear.7.forward", "Functional.linear.7.backward"]
    )
    def test_a_lost_call_is_known_from_the_other_files_and_the_numbering(
        self, dump: Dump, tmp_path: Path, name: str
    ):
        file = copy_dump(dump("pt_none"), tmp_path)
        content = json.loads(file.read_text())
        del content["data"][name]
        file.write_text(json.dumps(content))

        (problem,) = read_trace(file).problems
        assert (problem.op, problem.count, problem.weakens) == (name, 1, True)
        assert problem.message.endswith(name)

    def test_a_norm_that_is_nan_between_finite_extremes_is_a_problem(
        self, dump: Dump, tmp_path: Path
    ):
        file = copy_dump(dump("pt_none"), tmp_path)
        content = json.loads(file.read_text())
        content["data"]["Functional.linear.7.forward"]["input_args"][0]["Norm"] = float("nan")
        file.write_text(json.dumps(content))

        (problem,) = read_trace(file).problems
        assert problem.message.startswith("mean or norm is NaN although max and min are finite")
        assert problem.op == "Functional.linear.7.forward"

    @pytest.mark.parametrize("name", ["construct.json", "stack.json"])
    @pytest.mark.parametrize("content", ["{", "[]", None])
    def test_the_other_files_may_be_missing_or_damaged(
        self, dump: Dump, tmp_path: Path, name: str, content: str | None
    ):
        file = copy_dump(dump("pt_none"), tmp_path)
        if content is None:
            (file.parent / name).unlink()
        else:
            (file.parent / name).write_text(content)
        trace = read_trace(file)

        assert len(trace.ops) == 351
        assert [problem.file for problem in trace.problems] == ([] if content is None else [name])

    @pytest.mark.parametrize("name", ["../secret.pt", "/etc/passwd", "..", "a/b.pt", "a\\b.pt"])
    def test_no_file_name_leads_out_of_the_folder(self, tmp_path: Path, name: str):
        trace = read_trace(
            write_dump(
                tmp_path,
                {
                    "Torch.add.0.forward": make_call(
                        make_tensor(2, data_name=name), output=make_tensor(2)
                    )
                },
            )
        )

        assert trace.tensors["file"].tolist() == ["", ""]
        assert "outside" in trace.problems[0].message

    def test_no_link_leads_out_of_the_folder(self, tmp_path: Path):
        outside, inside = tmp_path / "outside.npy", tmp_path / "dump" / "dump_tensor_data"
        np.save(outside, np.zeros(2))
        inside.mkdir(parents=True)
        (inside / "a.npy").symlink_to(outside)
        leaf = make_tensor(2, data_name="a.npy")
        trace = read_trace(
            write_dump(tmp_path / "dump", {"Torch.add.0.forward": make_call(leaf, output=leaf)})
        )

        with pytest.raises(DumpError, match="outside"):
            trace.array(0)

    def test_missing_tensor_files_are_one_counted_problem(self, tmp_path: Path):
        leaf = make_tensor(2, data_name="Torch.add.0.forward.input.0.pt")
        trace = read_trace(
            write_dump(
                tmp_path, {"Torch.add.0.forward": make_call(leaf, leaf, output=make_tensor(2))}
            )
        )

        (problem,) = trace.problems
        assert (problem.count, "missing" in problem.message) == (2, True)
        with pytest.raises(KeyError, match="statistics only"):
            trace.array(0)

    def test_unknown_names_and_keys_are_counted_and_the_rest_is_used(self, tmp_path: Path):
        entries = {
            "what is this": make_call(make_tensor(2)),
            "Torch.add.0.forward": {**make_call(make_tensor(2)), "new": [make_tensor(2)]},
        }
        trace = read_trace(write_dump(tmp_path, entries))

        assert trace.ops["name"].tolist() == ["Torch.add.0.forward"]
        assert [problem.count for problem in trace.problems] == [1]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('{"task": "tensor", "data": {}}', "holds no entry"),
            ('{"task": "tensor", "data": []}', 'an object "data"'),
            ('{"task": "tensor", "data"', "damaged before"),
            ('{"task": "tensor", "data": ' + "[" * 100_000, "nested too deeply|damaged before"),
        ],
    )
    def test_a_dump_without_entries_is_one_clear_error(
        self, tmp_path: Path, content: str, message: str
    ):
        file = tmp_path / "dump.json"
        file.write_text(content)

        with pytest.raises(DumpError, match=message) as error:
            read_trace(file)
        assert "\n" not in str(error.value)


def test_what_follows_the_last_gradient_is_the_optimizers_but_for_modules(tmp_path: Path):
    """A norm that the user's own code computes, with a stack; then a module of a second pass."""
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 2],
              "Max": 1.5, "Min": -0.5, "Mean": 0.25, "Norm": 2.0}  # fmt: skip
    entry = {"input_args": [tensor], "input_kwargs": {}, "output": [tensor]}
    gradient = {"input": [tensor], "output": [tensor]}
    names = ("Functional.linear.0.forward", "Functional.linear.0.backward", "Torch.norm.0.forward",
             "Functional.linear.1.forward", "Module.net.Net.forward.1")  # fmt: skip
    data = {name: gradient if "backward" in name else entry for name in names}
    file = write_dump(tmp_path, data, framework="pytorch", level="mix")
    frames = ["File train.py, line 9, in clip, \n norm = torch.norm(gradient)"]
    (tmp_path / "stack.json").write_text(json.dumps({"0": [["Torch.norm.0.forward"], frames]}))
    construct = {"Functional.linear.1.forward": "Module.net.Net.forward.1"}
    (tmp_path / "construct.json").write_text(json.dumps(construct))
    ops = read_trace(file).ops.set_index("name")
    assert ops.loc["Torch.norm.0.forward", "source"] == "train.py:9"
    assert ops["phase"].tolist() == ["forward", "backward", "optimizer", "forward", "forward"]


def test_a_division_that_rounds_is_another_function() -> None:
    number = {"type": "int", "value": 2}
    mode = {"rounding_mode": {"type": "str", "value": "floor"}}
    block = {
        "Torch.div.0.forward": {"input_args": [number], "input_kwargs": mode, "output": []},
        "Torch.div.1.forward": {"input_args": [number], "input_kwargs": {}, "output": []},
    }
    kinds = [call.kind for call in collect_entries({}, [block]).calls]
    assert kinds == ["Torch.floor_divide", "Torch.div"]
