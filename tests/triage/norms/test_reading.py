"""What is read from logs, files, dumps and lists: which norms, of which step, squares or roots."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dumpdiff.errors import DumpError
from dumpdiff.triage.norms import Norms, read_norms

DATA = Path(__file__).parents[1] / "data"
MEGATRON = DATA / "norms" / "megatron_0.12_local_norm.log"
MINDFORMERS = DATA / "logs" / "mindformers_1.8_resumed.log"


def text(tmp_path: Path, said: str, name: str = "said.log") -> Path:
    (tmp_path / name).write_text(said)
    return tmp_path / name


# --- MindSpore Transformers, the wrapper's block


def test_the_trainers_block_holds_squares_and_sizes() -> None:
    norms = read_norms(MINDFORMERS)
    assert norms.squared
    assert norms.values == pytest.approx(np.sqrt([2.4751013e-02, 9.5549629e-05, 5.1672518e-02]))
    assert norms.sizes.tolist() == [1024, 1024, 64]
    assert norms.names == ("", "", "")


def test_its_step_is_that_of_the_line_below() -> None:
    assert read_norms(MINDFORMERS).step == 4  # the run was resumed
    assert read_norms(MINDFORMERS, 5).given[0] == 2.0777809e-02


def test_steps_that_begin_anew_within_an_epoch_are_counted_on() -> None:
    later = read_norms(MINDFORMERS, 9)
    assert later.sum == pytest.approx(later.total, rel=1e-6)


@pytest.mark.parametrize("step", range(4, 10))
def test_squares_sum_to_the_square_of_the_global_norm(step: int) -> None:
    norms = read_norms(MINDFORMERS, step)
    assert norms.sum == pytest.approx(norms.total, rel=1e-6)
    assert norms.because.endswith(f"their sum is the square of the global norm {norms.total:g}")


def test_the_middle_that_numpy_leaves_out_is_counted(tmp_path: Path) -> None:
    log = text(tmp_path, "norm_size: (9, 8, 7, 6, 5, 4)\nlocal_norm:\n[1.5 2.5 ...\n 4.5 5.5]\n")
    norms = read_norms(log)
    assert norms.sizes.tolist() == [9, 8, 5, 4]
    assert norms.notes == ("2 of 6 norms are left out of the print; set numpy.set_printoptions(threshold=sys.maxsize)",)


# --- Megatron-LM with the guide's patch


@pytest.mark.parametrize(("step", "first", "total"), [(1, 0.7230, 1.418), (2, 0.7737, 1.490), (3, 0.7701, 1.472)])
def test_of_three_lists_the_first_is_taken_which_is_before_clipping(step: int, first: float, total: float) -> None:
    norms = read_norms(MEGATRON, step)
    assert (len(norms), norms.squared, norms.given[0], norms.total) == (28, True, first, total)
    assert norms.sum == pytest.approx(total, rel=1e-3)


def test_the_digits_of_each_norm_are_known() -> None:
    norms = read_norms(MEGATRON)
    assert norms.rounding[0] == pytest.approx(5e-5)  # tensor(0.7230)
    assert norms.rounding[10] == pytest.approx(5e-11)  # tensor(2.4887e-06)


def test_a_list_that_was_clipped_is_put_right(tmp_path: Path) -> None:
    said = MEGATRON.read_text().split("print torch local norm:")
    norms = read_norms(text(tmp_path, f"{said[0]}print torch local norm:{said[3]}"))
    assert norms.notes == ("they were taken after clipping to 1: undone by 1.4e0",)
    assert norms.values == pytest.approx(read_norms(MEGATRON).values, rel=0.25, abs=1e-3)
    assert norms.sum == pytest.approx(1.418, rel=1e-4)


def test_devices_and_dtypes_in_a_list_are_no_norms(tmp_path: Path) -> None:
    said = (
        "local norm:\n[tensor(0.5, device='cuda:0'), tensor(4.e-3, device='npu:1', dtype=torch.float32), tensor(nan)]"
    )
    assert read_norms(text(tmp_path, said)).given == pytest.approx([0.5, 4e-3, np.nan], nan_ok=True)


def test_the_precision_is_that_of_the_arguments(tmp_path: Path) -> None:
    said = f"  clip_grad {'.' * 39} 0.5\n  params_dtype {'.' * 36} torch.bfloat16\nlocal norm:\n[tensor(0.2500)]\n"
    norms = read_norms(text(tmp_path, said))
    assert (norms.precision, norms.clip) == ("bfloat16", 0.5)


# --- the log's own evidence of squares and roots


@pytest.mark.parametrize(("given", "squared"), [((0.09, 0.16), True), ((0.3, 0.4), False)])
def test_the_global_norm_tells_squares_from_roots(tmp_path: Path, given: tuple[float, ...], squared: bool) -> None:
    step = "{ Epoch:[  1/  1], step:[    1/    8], loss: 4.1, global_norm: [0.5], lr: 0.1"
    norms = read_norms(text(tmp_path, f"norm_size: (4, 4)\nlocal_norm:\n[{given[0]} {given[1]}]\n{step}\n"))
    assert norms.squared is squared
    assert norms.values == pytest.approx([0.3, 0.4])
    assert ("although that form prints the other" in norms.because) is not squared


def test_norms_that_are_less_than_the_global_one_are_some_of_them(tmp_path: Path) -> None:
    step = "{ Epoch:[  1/  1], step:[    1/    8], loss: 4.1, global_norm: [0.9], lr: 0.1"
    norms = read_norms(text(tmp_path, f"local_norm:\n[0.09 0.16]\n{step}\n"))
    assert "less than the global norm 0.9: parameters are missing" in norms.notes[0]


# --- lines with names


def test_the_monitors_lines_hold_roots(tmp_path: Path) -> None:
    lines = [
        f"2026-01-01 - INFO - Epoch:[  1/  2], step:[    {step}/    8] local_norm/{name}: {0.1 * step}{digits}"
        for step in (1, 2)
        for name, digits in (("fc.weight", "25"), ("fc.bias", "50"))
    ]
    norms = read_norms(text(tmp_path, "\n".join(lines)), 2)
    assert (norms.names, norms.squared, norms.step) == (("fc.weight", "fc.bias"), False, 2)
    assert norms.given == pytest.approx([0.225, 0.25])
    assert norms.rounding == pytest.approx([5e-4, 5e-4])


def test_moments_and_weights_of_the_monitor_are_no_gradients() -> None:
    with pytest.raises(DumpError, match="no gradient norms are in it"):
        read_norms(DATA / "logs" / "mindformers_1.7.log")


def test_norms_of_a_parameter_that_repeats_are_of_the_next_step(tmp_path: Path) -> None:
    said = "".join(f"dump local norm: \n{name}\n{value}\n" for value in (0.5, 0.25) for name in ("a.weight", "b.bias"))
    assert read_norms(text(tmp_path, said)).given.tolist() == [0.5, 0.5]
    assert read_norms(text(tmp_path, said), 2).given.tolist() == [0.25, 0.25]


@pytest.mark.parametrize(
    "line",
    [
        "{name}: {value}",
        "[rank0] {name} grad norm = tensor({value}, device='cuda:0')",
        "iter 1 | {name} | l2 norm: {value} |",
        "{name}, grad_norm: {value}, mean: 3e-5",
    ],
)
def test_a_line_with_a_name_and_a_number_is_one_in_many_forms(tmp_path: Path, line: str) -> None:
    pairs = {"model.layers.10.mlp.fc2.weight": "0.125", "model.norm.bias": "2.5e-05"}
    said = "loading 3 files\n" + "\n".join(line.format(name=name, value=value) for name, value in pairs.items())
    norms = read_norms(text(tmp_path, said))
    assert dict(zip(norms.names, norms.given.tolist(), strict=True)) == {k: float(v) for k, v in pairs.items()}


def test_words_beside_the_number_can_say_that_it_is_a_square(tmp_path: Path) -> None:
    norms = read_norms(text(tmp_path, "a.weight norm**2: 0.25\nb.weight norm**2: 4.0\n"))
    assert norms.values.tolist() == [0.5, 2.0]


def test_ranks_in_one_log_are_put_together(tmp_path: Path) -> None:
    said = "\n".join(f"[default{rank}]:step:[1] local_norm/layers.{rank}.wq.weight: 0.5" for rank in (0, 1))
    norms = read_norms(text(tmp_path, said))
    assert norms.names == ("layers.0.wq.weight", "layers.1.wq.weight")
    assert norms.notes == ("2 ranks hold 2 parameters together",)


def test_logs_of_ranks_with_data_of_their_own_are_told_apart(tmp_path: Path) -> None:
    for rank in (0, 1):
        text(tmp_path, f"step:[1] local_norm/wq.weight: 0.{5 + rank}00", f"worker_{rank}.log")
    norms = read_norms(tmp_path)
    assert norms.given.tolist() == [0.5]
    assert "1 norms differ between ranks" in norms.notes[1]


# --- lists


@pytest.mark.parametrize(
    ("name", "said", "names"),
    [
        ("a.txt", "0.5\n0.25\n", ("", "")),
        ("a.txt", "# step 1\n[0.5, 0.25]\n", ("", "")),
        ("a.txt", "[tensor(0.5, device='cuda:0'), tensor(0.25)]", ("", "")),
        ("a.txt", "embed 0.5\nhead 0.25\n", ("embed", "head")),
        ("a.txt", "embed: 0.5\nhead = 0.25\n", ("embed", "head")),
        ("a.csv", "step,parameter,grad_norm\n1,embed,0.5\n1,head,0.25\n", ("embed", "head")),
        ("a.csv", "norm\n0.5\n0.25\n", ("", "")),
        ("a.json", "[0.5, 0.25]", ("", "")),
        ("a.json", '{"step": 1, "norms": {"embed": 0.5, "head": 0.25}}', ("embed", "head")),
        ("a.json", '[{"name": "embed", "norm": 0.5}, {"name": "head", "norm": 0.25}]', ("embed", "head")),
        ("a.json", '[["embed", 0.5], ["head", 0.25]]', ("embed", "head")),
    ],
)
def test_a_list_is_read_in_any_form(tmp_path: Path, name: str, said: str, names: tuple[str, ...]) -> None:
    norms = read_norms(text(tmp_path, said, name))
    assert (norms.names, norms.given.tolist()) == (names, [0.5, 0.25])


@pytest.mark.parametrize(
    ("said", "squared"), [('{"squared norms": [0.25, 4.0]}', True), ('{"norms": [0.25, 4.0]}', None)]
)
def test_a_list_may_say_that_it_holds_squares(tmp_path: Path, said: str, squared: bool | None) -> None:
    assert read_norms(text(tmp_path, said, "a.json")).squared is squared


# --- files, gradients, dumps


def test_files_of_mindspore_are_one_norm_each(tmp_path: Path) -> None:
    folder = tmp_path / "rank_0"
    folder.mkdir()
    for number, (name, value) in enumerate([("b.weight", 1.5), ("a.weight", 0.5), ("b.weight", 2.5)]):
        np.save(folder / f"local_norm__{name}_float32_{number}.npy", np.float32(value))
    first = read_norms(tmp_path)
    assert (first.names, first.given.tolist(), first.squared) == (("b.weight", "a.weight"), [1.5, 0.5], False)
    assert read_norms(tmp_path, 2).names == ("b.weight",)
    with pytest.raises(DumpError, match="has no step 3; its files are of 2 steps"):
        read_norms(tmp_path, 3)


def save_npz(folder: Path, gradients: dict[str, np.ndarray]) -> Path:
    np.savez(folder / "g.npz", **gradients)
    return folder / "g.npz"


def save_npy(folder: Path, gradients: dict[str, np.ndarray]) -> Path:
    for name, values in gradients.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def save_safetensors(folder: Path, gradients: dict[str, np.ndarray]) -> Path:
    from safetensors.numpy import save_file

    save_file(gradients, folder / "g.safetensors")
    return folder / "g.safetensors"


def save_torch(folder: Path, gradients: dict[str, np.ndarray]) -> Path:
    import torch

    torch.save({f"module.{name}": torch.from_numpy(values) for name, values in gradients.items()}, folder / "g.pt")
    return folder / "g.pt"


def save_steps(folder: Path, gradients: dict[str, np.ndarray]) -> Path:
    np.savez(folder / "gradients_1.npz", **gradients)
    np.savez(folder / "weights_0.npz", **{name: np.ones(3, np.float32) for name in gradients})
    return folder


@pytest.mark.parametrize("save", [save_npz, save_npy, save_safetensors, save_torch, save_steps])
def test_norms_of_saved_gradients_are_computed(
    tmp_path: Path, save: Callable[[Path, dict[str, np.ndarray]], Path]
) -> None:
    random = np.random.default_rng(3)
    gradients = {
        name: random.normal(0, 1, shape).astype(np.float32)
        for name, shape in (
            ("model.embed_tokens.weight", (7, 5)),
            ("lm_head.weight", (5, 7)),
            ("model.norm.bias", (5,)),
        )
    }
    norms = read_norms(save(tmp_path, gradients))
    assert set(norms.names) == set(gradients)
    for name, value, size in zip(norms.names, norms.values, norms.sizes, strict=True):
        assert value == pytest.approx(float(np.linalg.norm(gradients[name].astype(np.float64))), rel=1e-12)
        assert size == gradients[name].size


@pytest.mark.parametrize(
    ("name", "count", "framework"),
    [("ms_graph", 39, "MindSpore"), ("pt_none", 48, "PyTorch"), ("ms_mf_none", 48, "MindSpore")],
)
def test_a_dump_holds_the_gradient_of_every_parameter(
    dump: Callable[[str], Path], name: str, count: int, framework: str
) -> None:
    norms = read_norms(dump(name))
    assert (len(norms), norms.named, norms.squared, norms.step) == (count, True, False, 1)
    assert (norms.source, norms.precision) == (f"gradients in a dump of {framework}", "float32")


def test_a_dump_counts_its_steps_from_zero(dump: Callable[[str], Path]) -> None:
    assert len(read_norms(dump("pt_none"), 1)) == 48
    with pytest.raises(DumpError, match=r"has no step 2; it has step 1 \(from 1\)"):
        read_norms(dump("pt_none"), 2)


# --- what cannot be used


def refused(path: Path, step: int | None = None) -> str:
    with pytest.raises(DumpError) as error:
        read_norms(path, step)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    assert refused(tmp_path / "a.log").endswith("a.log: no such file or folder")


@pytest.mark.parametrize("said", ["", "hello\n", '{"a": {"b": "c"}}', "a,b\n1,2\n", "\n".join(["x"] * 50)])
def test_a_text_without_norms(tmp_path: Path, said: str) -> None:
    assert "no gradient norms are in it; expected lines 'step:[1] local_norm/NAME: NORM'" in refused(
        text(tmp_path, said)
    )


def test_a_folder_of_nothing(tmp_path: Path) -> None:
    assert "holds no logs, gradients or dump" in refused(tmp_path)
    shutil.copy(DATA / "logs" / "megatron_0.12.log", tmp_path)
    assert "none of 1 logs holds local norms" in refused(tmp_path)


def test_a_step_that_the_log_has_not() -> None:
    assert refused(MEGATRON, 7).endswith("has no norms of step 7; it has those of steps 1 to 3")


def test_a_dump_without_names(dump: Callable[[str], Path]) -> None:
    assert "it names no parameters" in refused(dump("v6.0_api_stack"))


def test_gradients_that_are_integers(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", a=np.arange(4))
    assert "holds no floating-point tensors" in refused(tmp_path / "g.npz")


def test_a_torch_file_that_would_run_code_is_not_run(tmp_path: Path) -> None:
    import pickle

    (tmp_path / "g.pt").write_bytes(pickle.dumps({"a": print}))
    assert "expected a checkpoint" in refused(tmp_path / "g.pt")


def test_deep_json_is_no_list(tmp_path: Path) -> None:
    assert "no gradient norms" in refused(text(tmp_path, "[" * 100_000 + "]" * 100_000, "a.json"))
    assert "no gradient norms" in refused(text(tmp_path, json.dumps({"a": [[], {}]}), "a.json"))


def test_values_take_the_root_of_squares_and_digits_with_them() -> None:
    norms: Norms = read_norms(MEGATRON)
    low, high = np.sqrt(norms.given - norms.rounding), np.sqrt(norms.given + norms.rounding)
    assert np.all(norms.values - norms.slack <= low + 1e-15)
    assert np.all(high - 1e-15 <= norms.values + norms.slack)
