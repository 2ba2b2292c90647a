"""The content of a file of settings, and the errors for anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.optimizers.script_settings import parse_settings, read_settings
from dumpdiff.optimizers.search import KnownSettings


def test_the_spellings_of_all_frameworks() -> None:
    megatron = parse_settings(
        {"lr": "1e-3", "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-8, "clip_grad": 1.0}
    )
    pytorch = parse_settings({"lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-8, "max_norm": 1})
    mindspore = parse_settings(
        {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "max_grad_norm": 1.0}
    )
    assert megatron == pytorch == mindspore
    assert megatron.to_known(2) == KnownSettings(
        {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "clip": 1.0}, (1e-3, 1e-3)
    )


def test_a_loss_scale_is_a_factor_on_the_gradients() -> None:
    assert parse_settings({"loss_scale": 1024}).values == {"factor": 1 / 1024}


def test_one_learning_rate_for_all_steps_or_one_for_each() -> None:
    rates_by_step = parse_settings({"lr": [1e-4, 2e-4, 3e-4]})
    assert rates_by_step.to_known(2).rates == (1e-4, 2e-4)
    assert parse_settings({}).to_known(2).rates is None
    with pytest.raises(DumpError, match="3 values for 4 steps"):
        rates_by_step.to_known(4)


def test_given_settings_override_those_in_the_folder() -> None:
    merged = parse_settings({"lr": 1e-3, "eps": 1e-8, "step": 5}).override_with(
        parse_settings({"lr": 1e-4, "momentum": 0.9})
    )
    assert merged == parse_settings({"lr": 1e-4, "eps": 1e-8, "step": 5, "momentum": 0.9})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"learningrate": 1}, "learningrate is no setting; those are lr, learning_rate"),
        ({"lr": "fast"}, "learning_rate: expected a number"),
        ({"lr": -1}, "learning_rate: expected a number"),
        ({"lr": float("nan")}, "learning_rate: expected a number"),
        ({"eps": True}, "epsilon: expected a number"),
        ({"betas": 0.9}, "betas: expected two numbers"),
        ({"beta1": 2}, "beta1: expected a number from 0 to 1"),
        ({"loss_scale": 0}, "loss_scale: expected a number above 0"),
        ({"step": 0}, "step: expected the number of the first update"),
        ({"step": 1.5}, "step: expected the number of the first update"),
    ],
)
def test_anything_else_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(DumpError, match=message):
        parse_settings(content)


@pytest.mark.parametrize(
    "content", [b"[1, 2]", b"lr: {", b"\xff\xfe\x00", b"", b"!!python/object:os.system {}"]
)
def test_a_file_that_holds_no_settings(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(content)
    with pytest.raises(DumpError, match=r"settings\.yaml"):
        read_settings(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="cannot be read"):
        read_settings(tmp_path / "none.yaml")
