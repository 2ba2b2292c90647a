"""msprobe dumps of PyTorch and MindSpore, as recorded, in the words of older versions, and damaged."""

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

Dump = Callable[[str], Path]


@pytest.fixture(scope="module", name="pytorch")
def clean_pytorch(dump: Dump) -> Trace:
    return trace(dump("pt_none"))


@pytest.fixture(scope="module", name="mindspore")
def clean_mindspore(dump: Dump) -> Trace:
    return trace(dump("ms_mf_none"))


def trace(path: Path) -> Trace:
    (part,) = readers.find_parts(path)
    return readers.read_part(part)


def slots(read: Trace, op: str) -> pd.DataFrame:
    """The tensors of the op of that name, by slot."""
    (row,) = np.flatnonzero(read.ops["name"] == op)
    return read.tensors[read.tensors["op"] == row].set_index("slot")


def copy(dump: Path, to: Path) -> Path:
    """The dump.json of a copy whose files may be changed."""
    shutil.copytree(dump, to / "dump")
    return next((to / "dump").rglob("dump.json"))


def written(folder: Path, data: dict[str, Any], **header: Any) -> Path:
    file = folder / "dump.json"
    file.write_text(json.dumps({"task": "tensor", "level": "L1", **header, "data": data}))
    return file


def tensor(*shape: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape),
        "Max": 1.0, "Min": -1.0, "Mean": 0.0, "Norm": 2.0, **more,
    }  # fmt: skip


def call(*arguments: Any, output: Any = None, **named: Any) -> dict[str, Any]:
    return {"input_args": list(arguments), "input_kwargs": named, "output": [output]}


def test_both_frameworks_are_read_completely(pytorch: Trace, mindspore: Trace):
    assert (pytorch.source.framework, mindspore.source.framework) == ("pytorch", "mindspore")
    assert (len(pytorch.ops), len(mindspore.ops)) == (351, 584)  # every entry of dump.json
    assert pytorch.problems == mindspore.problems == ()
    assert pytorch.source.era == "26.2 or later (statistics, level mix)"


def test_step_and_process_come_from_the_folders(dump: Dump):
    (part,) = readers.find_parts(dump("pt_none"))

    assert (part.step, part.rank, part.process, part.has_tensors) == (0, None, 17620, False)
    assert readers.find_parts(part.path) == readers.find_parts(part.path.parent) == [part]


@pytest.mark.parametrize("number", [0, 57, 473, 999, 1000, 17620])
def test_a_process_is_no_rank_however_small_its_id(number: int, tmp_path: Path):
    """In a container the ids of processes begin at 1."""
    folder = tmp_path / "step0" / f"proc{number}"
    folder.mkdir(parents=True)
    written(folder, {"Functional.relu.0.forward": call(tensor(2), output=tensor(2))})
    (part,) = readers.find_parts(tmp_path)

    assert (part.rank, part.process, part.rank_or_process) == (None, number, number)
    assert (readers.read_part(part).source.rank, readers.read_part(part).source.process) == (None, number)
    assert f"process {number}" in str(part)
    assert readers.choose_parts([part], [replace(part, rank=2)])[1].rank == 2


def test_a_folder_of_a_rank_goes_before_one_of_a_process(tmp_path: Path):
    folder = tmp_path / "rank3" / "proc473"
    folder.mkdir(parents=True)
    written(folder, {"Functional.relu.0.forward": call(tensor(2), output=tensor(2))})
    (part,) = readers.find_parts(tmp_path)

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
    held = slots(pytorch, "Module.model.layers.0.self_attn.q_proj.Linear.forward.0").loc[
        "parameter.weight"
    ]
    read = slots(pytorch, "Functional.linear.0.forward").loc["input.1"]
    primitive = slots(mindspore, "Primitive.matmul.MatMul.0.forward").loc["input.1"]

    assert (held["role"], held["parameter"]) == (
        "parameter",
        "model.layers.0.self_attn.q_proj.weight",
    )
    assert (read["role"], read["parameter"]) == ("input", "model.layers.0.self_attn.q_proj.weight")
    assert primitive["parameter"] == "model.layers.0.attention.wq.weight"


def test_parameter_gradients_are_named_and_trusted(pytorch: Trace, mindspore: Trace):
    name = "Module.model.layers.3.mlp.down_proj.Linear.parameters_grad.0"
    gradient = slots(pytorch, name).loc["output.weight"]
    op = pytorch.ops[pytorch.ops["name"] == name].iloc[0]

    assert (gradient["role"], gradient["gradient_of"]) == (
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


def test_backward_outputs_of_pytorch_calls_are_doubted_and_those_of_modules_and_mindspore_are_not(
    pytorch: Trace, mindspore: Trace
):
    assert not slots(pytorch, "Functional.linear.28.backward").loc[
        "output.0", "trusted"
    ]  # [64, 256]: what came in
    assert slots(pytorch, "Module.model.layers.0.mlp.LlamaMLP.backward.0")["trusted"].all()
    assert slots(mindspore, "Functional.matmul.2.backward")["trusted"].all()


def test_inputs_of_in_place_updates_are_recorded_before_the_call(pytorch: Trace):
    optimizer = pytorch.ops[pytorch.ops["phase"] == "optimizer"]

    assert set(optimizer["kind"]) == {"Tensor.add_"}
    assert len(optimizer) == 48
    update = slots(pytorch, "Tensor.add_.0.forward")
    assert update["trusted"].all()
    assert update.loc["input.alpha", ["max", "norm", "constant", "dtype"]].tolist() == [
        -0.05,
        0.05,
        True,
        "float",
    ]


def test_keyword_arguments_keep_their_name_and_lists_their_places(pytorch: Trace, mindspore: Trace):
    assert slots(pytorch, "Functional.softmax.0.forward").loc["input.dim", "max"] == -1
    reshaped = slots(mindspore, "Primitive.reshape.Reshape.31.forward")
    assert reshaped.loc[["input.1.0", "input.1.1"], "max"].tolist() == [-1, 64]


def test_whole_tensors_are_loaded(dump: Dump):
    read = trace(dump("demo_pytorch"))
    rows = np.flatnonzero(read.tensors["file"] != "")

    assert len(rows) > 500
    for row in rows[::40].tolist():
        array, said = read.array(row), read.tensors.iloc[row]
        assert array.shape == said["shape"]
        assert float(array.max()) == pytest.approx(said["max"])


@pytest.mark.parametrize("name", ["checksum", "structure"])
def test_tasks_without_statistics(tmp_path: Path, name: str):
    leaf = {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": [2, 2]}
    if name == "checksum":
        leaf["md5"] = "6d2a0ff1"
    read = trace(
        written(tmp_path, {"Torch.add.0.forward": call(leaf, output=leaf)}, framework="pytorch")
    )

    assert read.tensors["hash"].tolist() == ["6d2a0ff1" if name == "checksum" else ""] * 2
    assert read.tensors["max"].isna().all()
    assert (read.tensors["nonfinite"] == -1).all()


def test_nonfinite_statistics_and_odd_leaves(tmp_path: Path):
    odd = [
        tensor(2, Max=float("nan"), Min=float("nan")), None, {"type": "str", "value": "mean"},
        {"type": "slice", "value": [0, 1, None]}, [[tensor(3)]], {"type": "unheard of"}, "text", 3,
    ]  # fmt: skip
    read = trace(written(tmp_path, {"Torch.add.0.forward": call(*odd, output=tensor(2))}))

    assert read.tensors["slot"].tolist() == ["input.0", "input.4.0.0", "output.0"]
    assert read.tensors["nonfinite"].tolist() == [1, 0, 0]


class TestOlderVersions:
    """Their documented differences, applied to a real dump of 26.2."""

    def test_before_1_3_the_framework_is_told_by_the_names(self, dump: Dump, tmp_path: Path):
        for name, framework in (("pt_none", "pytorch"), ("ms_mf_none", "mindspore")):
            file = copy(dump(name), tmp_path / name)
            content = json.loads(file.read_text())
            del content["framework"]
            file.write_text(json.dumps(content))

            assert trace(file).source.framework == framework
            assert trace(file).source.era.startswith("before 1.3")

    def test_stacks_of_one_name_each(self, dump: Dump, tmp_path: Path, pytorch: Trace):
        file = copy(dump("pt_none"), tmp_path)
        shared = json.loads((file.parent / "stack.json").read_text())
        single = {name: frames for names, frames in shared.values() for name in names}
        (file.parent / "stack.json").write_text(json.dumps(single))

        assert trace(file).ops["source"].tolist() == pytorch.ops["source"].tolist()

    def test_parameter_gradients_reserved_in_the_forward_part_move_behind_backward(
        self, dump: Dump, tmp_path: Path
    ):
        file = copy(dump("pt_none"), tmp_path)
        content = json.loads(file.read_text())
        name = "Module.model.layers.0.mlp.down_proj.Linear"
        gradient = content["data"].pop(f"{name}.parameters_grad.0")
        entries = {}
        for key, entry in content["data"].items():
            entries[key] = entry
            if key == f"{name}.forward.0":
                entries[f"{name}.parameters_grad"] = gradient
        file.write_text(json.dumps({**content, "data": entries}))

        names = trace(file).ops["name"].tolist()
        assert names.index(f"{name}.parameters_grad") == names.index(f"{name}.backward.0") + 1

    def test_recomputed_calls_are_marked_by_the_recorder(self, dump: Dump, tmp_path: Path):
        file = copy(dump("pt_none"), tmp_path)
        content = json.loads(file.read_text())
        for name, entry in content["data"].items():
            if "input_args" in entry:
                entry["is_recompute"] = name == "Torch.matmul.3.forward"
        file.write_text(json.dumps(content))

        read = trace(file)
        assert read.ops["name"][read.ops["recomputed"]].tolist() == ["Torch.matmul.3.forward"]

    def test_grad_input_and_grad_output_of_1_0_are_told_by_their_shapes(
        self, dump: Dump, tmp_path: Path, pytorch: Trace
    ):
        file = copy(dump("pt_none"), tmp_path)
        content = json.loads(file.read_text())
        for entry in content["data"].values():
            if "input" in entry:
                entry["grad_output"], entry["grad_input"] = entry.pop("input"), entry.pop("output")
        file.write_text(json.dumps(content))

        old = trace(file).tensors.sort_values(["op", "slot"], ignore_index=True)
        pd.testing.assert_frame_equal(
            old, pytorch.tensors.sort_values(["op", "slot"], ignore_index=True)
        )

    def test_level_l1_has_no_modules(self, dump: Dump, tmp_path: Path):
        file = copy(dump("pt_none"), tmp_path)
        (file.parent / "construct.json").write_text("{}")
        content = json.loads(file.read_text())
        content["data"] = {
            key: entry for key, entry in content["data"].items() if not key.startswith("Module.")
        }
        file.write_text(json.dumps(content))

        read = trace(file)
        assert set(read.ops["level"]) == {"op"}
        assert (read.ops["phase"] == "optimizer").sum() == 48  # by their stacks


class TestWrongInput:
    def test_a_cut_file_keeps_its_complete_entries(self, dump: Dump, tmp_path: Path):
        file = copy(dump("pt_none"), tmp_path)
        text = file.read_text()
        file.write_text(text[: len(text) // 2])
        read = trace(file)

        (problem,) = read.problems
        assert "cut short" in problem.message
        assert problem.line is not None
        assert 100 < len(read.ops) < 250
        assert read.source.framework == "pytorch"

    def test_a_damaged_entry_costs_only_itself(self, dump: Dump, tmp_path: Path):
        file = copy(dump("pt_none"), tmp_path)
        text = file.read_text()
        file.write_text(
            text.replace('"Functional.linear.7.forward": {', '"Functional.linear.7.forward": {,', 1)
        )
        read = trace(file)

        (problem,) = read.problems
        assert problem.message.startswith("damaged entry skipped")
        assert len(read.ops) == 350

    @pytest.mark.parametrize("name", ["construct.json", "stack.json"])
    @pytest.mark.parametrize("content", ["{", "[]", None])
    def test_files_beside_may_be_missing_or_damaged(
        self, dump: Dump, tmp_path: Path, name: str, content: str | None
    ):
        file = copy(dump("pt_none"), tmp_path)
        if content is None:
            (file.parent / name).unlink()
        else:
            (file.parent / name).write_text(content)
        read = trace(file)

        assert len(read.ops) == 351
        assert [problem.file for problem in read.problems] == ([] if content is None else [name])

    @pytest.mark.parametrize("name", ["../secret.pt", "/etc/passwd", "..", "a/b.pt", "a\\b.pt"])
    def test_no_file_name_leads_out_of_the_folder(self, tmp_path: Path, name: str):
        read = trace(
            written(
                tmp_path, {"Torch.add.0.forward": call(tensor(2, data_name=name), output=tensor(2))}
            )
        )

        assert read.tensors["file"].tolist() == ["", ""]
        assert "outside" in read.problems[0].message

    def test_no_link_leads_out_of_the_folder(self, tmp_path: Path):
        outside, inside = tmp_path / "outside.npy", tmp_path / "dump" / "dump_tensor_data"
        np.save(outside, np.zeros(2))
        inside.mkdir(parents=True)
        (inside / "a.npy").symlink_to(outside)
        leaf = tensor(2, data_name="a.npy")
        read = trace(written(tmp_path / "dump", {"Torch.add.0.forward": call(leaf, output=leaf)}))

        with pytest.raises(DumpError, match="outside"):
            read.array(0)

    def test_missing_tensor_files_are_one_counted_problem(self, tmp_path: Path):
        leaf = tensor(2, data_name="Torch.add.0.forward.input.0.pt")
        read = trace(written(tmp_path, {"Torch.add.0.forward": call(leaf, leaf, output=tensor(2))}))

        (problem,) = read.problems
        assert (problem.count, "missing" in problem.message) == (2, True)
        with pytest.raises(KeyError, match="statistics only"):
            read.array(0)

    def test_unknown_names_and_keys_are_counted_and_the_rest_is_used(self, tmp_path: Path):
        entries = {
            "what is this": call(tensor(2)),
            "Torch.add.0.forward": {**call(tensor(2)), "new": [tensor(2)]},
        }
        read = trace(written(tmp_path, entries))

        assert read.ops["name"].tolist() == ["Torch.add.0.forward"]
        assert [problem.count for problem in read.problems] == [1]

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ('{"task": "tensor", "data": {}}', "holds no entry"),
            ('{"task": "tensor", "data": []}', 'an object "data"'),
            ('{"task": "tensor", "data"', "damaged before"),
            ('{"task": "tensor", "data": ' + "[" * 100_000, "nested too deeply|damaged before"),
        ],
    )
    def test_what_holds_nothing_is_one_clear_error(self, tmp_path: Path, content: str, said: str):
        file = tmp_path / "dump.json"
        file.write_text(content)

        with pytest.raises(DumpError, match=said) as error:
            trace(file)
        assert "\n" not in str(error.value)
