"""Weights and gradients from files: their order, their names, and optimizer states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.optimizers.groups import EXPLAINED
from dumpdiff.optimizers.inputs import build_histories, read_run, read_steps, strip_wrappers

RATE = 0.125
WEIGHT = np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32)
BIAS = np.random.default_rng(1).standard_normal(16).astype(np.float32)
NAMES = ("layer.weight", "layer.bias")


def save_run(
    folder: Path, steps: int = 2, gradients: tuple[str, ...] = NAMES, **states: np.ndarray
) -> Path:
    """Save a run of SGD; ``gradients`` are their names, ``states`` are saved with the weights."""
    generator = np.random.default_rng(2)
    folder.mkdir(exist_ok=True)
    weights = dict(zip(NAMES, (WEIGHT, BIAS), strict=True))
    np.savez(folder / "weights_0.npz", **weights, **states)
    for step in range(1, steps + 1):
        drawn_gradients = {
            name: generator.standard_normal(array.shape).astype(np.float32)
            for name, array in weights.items()
        }
        np.savez(
            folder / f"gradients_{step}.npz",
            **dict(zip(gradients, drawn_gradients.values(), strict=True)),
        )
        weights = {
            name: array - np.float32(RATE) * drawn_gradients[name]
            for name, array in weights.items()
        }
        np.savez(folder / f"weights_{step}.npz", **weights, **states)
    return folder


def test_a_folder_of_numbered_files(tmp_path: Path) -> None:
    run = read_run(str(save_run(tmp_path)))
    assert (run.state, run.n_steps, run.problems) == (EXPLAINED, 2, ())
    assert run.groups[0].fit.rates == pytest.approx([RATE, RATE])
    assert set(run.groups[0].parameters) == set(NAMES)


def test_files_in_order_separated_by_commas(tmp_path: Path) -> None:
    save_run(tmp_path)
    argument = ",".join(
        str(tmp_path / f"{name}.npz") for name in ("weights_0", "gradients_1", "weights_1")
    )
    assert read_run(argument).n_steps == 1


def test_every_format_of_checkpoints(tmp_path: Path) -> None:
    import mindspore as ms
    import torch
    from safetensors.numpy import save_file

    folder = save_run(tmp_path / "run")
    arrays = {file.stem: dict(np.load(file)) for file in folder.iterdir()}
    for file in folder.iterdir():
        file.unlink()
    listed = [
        {"name": name, "data": ms.Tensor(array)} for name, array in arrays["weights_0"].items()
    ]
    ms.save_checkpoint(listed, str(folder / "weights_0.ckpt"))
    torch.save(
        {name: torch.from_numpy(a) for name, a in arrays["gradients_1"].items()},
        folder / "gradients_1.pt",
    )
    save_file(arrays["weights_1"], folder / "weights_1.safetensors")
    (folder / "gradients_2").mkdir()
    for name, array in arrays["gradients_2"].items():
        np.save(folder / "gradients_2" / f"{name}.npy", array)
    np.savez(folder / "weights_2.npz", **arrays["weights_2"])
    run = read_run(str(folder))
    assert (run.state, run.n_steps, run.groups[0].fit.rule.name) == (EXPLAINED, 2, "SGD")


def test_settings_in_the_folder_are_read_and_overridden_by_a_given_file(
    tmp_path: Path,
) -> None:
    folder = save_run(tmp_path / "run")
    (folder / "settings.yaml").write_text("lr: 0.5\nstep: 3")
    assert read_steps(str(folder)).settings.first_step == 3
    fit = read_run(str(folder)).groups[0].fit
    assert (fit.rates, fit.scaling.kind, fit.values["factor"]) == (
        (0.5, 0.5),
        "one factor",
        pytest.approx(0.25),
    )
    (tmp_path / "other.yaml").write_text(f"lr: {RATE}")
    fit = read_run(str(folder), tmp_path / "other.yaml").groups[0].fit
    assert (fit.rates, fit.scaling.kind) == ((RATE, RATE), "none")


@pytest.mark.parametrize(
    ("gradients", "problems"),
    [
        (("grad.layer.weight", "grad.layer.bias"), ()),
        (("module.layer.weight.grad", "module.layer.bias.grad"), ()),
        (
            ("arr_0", "arr_1"),
            ("gradients and weights have different names; they were paired by their order",),
        ),
    ],
)
def test_gradients_by_other_names(
    tmp_path: Path, gradients: tuple[str, ...], problems: tuple[str, ...]
) -> None:
    run = read_run(str(save_run(tmp_path, gradients=gradients)))
    assert (run.state, run.problems) == (EXPLAINED, problems)


@pytest.mark.parametrize(
    ("name", "stripped"),
    [
        ("module.module.a.b", "a.b"),
        ("_orig_mod.a", "a"),
        ("grads.a", "a"),
        ("a.main_grad", "a"),
        ("a", "a"),
        ("gradual.a", "gradual.a"),
    ],
)
def test_wrapper_prefixes_and_gradient_suffixes_are_removed(name: str, stripped: str) -> None:
    assert strip_wrappers(name) == stripped


def test_moments_saved_with_the_weights_need_a_step(tmp_path: Path) -> None:
    moments = {
        "moment1.layer.weight": np.ones_like(WEIGHT),
        "moment2.layer.weight": np.ones_like(WEIGHT),
    }
    folder = save_run(tmp_path, **moments)
    with pytest.raises(
        DumpError, match="give the number of the first update as 'step' in the settings"
    ):
        read_run(str(folder))
    run_histories, _ = build_histories(read_steps(str(folder)), first_step=8)
    weight = next(history for history in run_histories if history.name == "layer.weight")
    assert (weight.previous_steps, weight.first_moment.min(), weight.second_moment.min()) == (
        7,
        1.0,
        1.0,
    )


def test_the_counter_of_a_mindspore_checkpoint_is_the_step(tmp_path: Path) -> None:
    states = {"adam_m.layer.bias": np.ones_like(BIAS), "global_step": np.array([4], np.int32)}
    run_histories, _ = build_histories(read_steps(str(save_run(tmp_path, **states))))
    assert {history.previous_steps for history in run_histories} == {4}


def test_moments_of_zero_are_those_of_a_fresh_run(tmp_path: Path) -> None:
    run_histories, problems = build_histories(
        read_steps(str(save_run(tmp_path, **{"exp_avg.layer.bias": np.zeros_like(BIAS)})))
    )
    assert ([history.first_moment for history in run_histories], problems) == ([None, None], [])


def test_parameters_without_gradients_are_skipped_and_reported(tmp_path: Path) -> None:
    run = read_run(str(save_run(tmp_path, **{"frozen.weight": WEIGHT})))
    assert run.problems == (
        "skipped, because weights or gradients are missing at a step: frozen.weight",
    )


def rename(folder: Path, old: str, new: str) -> None:
    (folder / old).rename(folder / new)


def test_missing_and_duplicate_files_are_reported(tmp_path: Path) -> None:
    folder = save_run(tmp_path / "run")
    rename(folder, "weights_1.npz", "after.npz")
    with pytest.raises(DumpError, match="expected weights_0, gradients_1 and weights_1"):
        read_steps(str(folder))
    rename(folder, "after.npz", "weights_1.npz")
    (folder / "weights_1.pt").write_bytes(b"")
    with pytest.raises(DumpError, match="a second file of the same step"):
        read_steps(str(folder))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nowhere", "no such folder; expected a folder with weights_0"),
        ("a,b", "2 paths; expected weights,gradients,weights"),
        ("a,b,c", "a: no such file or folder"),
    ],
)
def test_unusable_arguments_are_refused(argument: str, message: str) -> None:
    with pytest.raises(DumpError, match=message):
        read_steps(argument)


def test_gradients_of_another_model(tmp_path: Path) -> None:
    folder = save_run(tmp_path)
    for step in (1, 2):
        np.savez(folder / f"gradients_{step}.npz", other=np.ones(3))
    with pytest.raises(
        DumpError, match=r"weights are named layer\.weight, layer\.bias, gradients other"
    ):
        read_run(str(folder))
