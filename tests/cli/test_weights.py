"""``dumpdiff weights``: the answer in the first line and in the exit code; JSON, CSV, rules."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from schemas import check

from dumpdiff.rulebook import load_rules

from .conftest import Run

Weights = dict[str, np.ndarray]


def make_weights() -> Weights:
    draw = np.random.default_rng(5).standard_normal
    parts = {
        "self_attn.q_proj": (32, 16),
        "self_attn.k_proj": (16, 16),
        "mlp.up_proj": (24, 16),
        "mlp.down_proj": (16, 24),
    }
    named = {
        f"model.layers.{layer}.{part}.weight": draw(shape).astype(np.float32)
        for layer in range(2)
        for part, shape in parts.items()
    }
    return {**named, "model.embed_tokens.weight": draw((40, 16)).astype(np.float32)}


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    save_file(make_weights(), tmp_path / "reference.safetensors")
    return tmp_path / "reference.safetensors"


@pytest.fixture
def wrong_checkpoint(tmp_path: Path) -> Path:
    changed = make_weights()
    changed["model.layers.1.self_attn.k_proj.weight"] *= 0.5
    save_file(changed, tmp_path / "wrong.safetensors")
    return tmp_path / "wrong.safetensors"


def test_same(run: Run, reference: Path) -> None:
    outcome = run("weights", reference, reference)
    assert outcome.exit_code == 0
    assert (
        outcome.stdout.splitlines()[0]
        == "same weights, bit for bit: 9 parameters, 100 % of the elements"
    )
    assert "target     safetensors, huggingface names: 9 tensors" in outcome.stdout


def test_different(run: Run, wrong_checkpoint: Path, reference: Path) -> None:
    outcome = run("weights", wrong_checkpoint, reference)
    assert outcome.exit_code == 1
    assert outcome.stdout.splitlines()[0] == (
        "different weights: 1 of 9 parameters are wrong: "
        "layers.1.attention.k.weight: 0.5 times the …"
    )
    assert run("weights", wrong_checkpoint, reference, "-q").stdout.count("\n") == 1
    assert (
        "layers.0.mlp.down_proj.weight" in run("weights", wrong_checkpoint, reference, "-v").stdout
    )


def test_inconclusive(run: Run, reference: Path, tmp_path: Path) -> None:
    save_file({"global_step": np.ones(1, np.float32)}, tmp_path / "counter.safetensors")
    outcome = run("weights", tmp_path / "counter.safetensors", tmp_path / "counter.safetensors")
    assert (outcome.exit_code, outcome.stdout.partition(":")[0]) == (3, "inconclusive")


def test_unusable(run: Run, reference: Path, tmp_path: Path) -> None:
    outcome = run("weights", tmp_path / "gone", reference)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert outcome.stderr == f"dumpdiff: {tmp_path / 'gone'}: no such file or folder\n"
    assert run("weights", reference).exit_code == 2


def test_json_and_csv(run: Run, wrong_checkpoint: Path, reference: Path, tmp_path: Path) -> None:
    outcome = run(
        "weights", wrong_checkpoint, reference, "--json", "-", "--csv", tmp_path / "pairs.csv"
    )
    document = json.loads(outcome.stdout)
    check(document, "weights")
    assert document["verdict"] == "differ"
    assert [pair["mistake"]["kind"] for pair in document["mistakes"]] == ["scaled"]
    assert outcome.stderr.startswith("different weights")

    with (tmp_path / "pairs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(document["pairs"]) == 9
    assert [row["path"] for row in rows if row["mistake"]] == ["layers.1.attention.k.weight"]
    assert {row["relation"] for row in rows} == {"identical", "different"}


def test_html(run: Run, wrong_checkpoint: Path, reference: Path, tmp_path: Path) -> None:
    outcome = run("weights", wrong_checkpoint, reference, "--html", tmp_path / "report.html", "-q")
    assert outcome.exit_code == 1
    page = (tmp_path / "report.html").read_text()
    assert "1 of 9 parameters are wrong" in html.unescape(re.sub(r"<[^>]+>", "", page))

    agreeing = run("weights", reference, reference, "--html", "-")
    assert (agreeing.exit_code, agreeing.stdout[:15]) == (0, "<!doctype html>")
    assert agreeing.stderr.startswith("same weights, bit for bit")


def test_html_is_refused_before_the_work(run: Run, reference: Path, tmp_path: Path) -> None:
    outcome = run("weights", reference, reference, "--html", tmp_path / "gone" / "report.html")
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert str(tmp_path / "gone") in outcome.stderr
    assert run("weights", reference, reference, "--html", "-", "--json", "-").exit_code == 2


def test_rules_out_is_what_align_takes(run: Run, reference: Path, tmp_path: Path) -> None:
    renamed = {
        name.replace("model.layers", "trunk.segment").replace(
            "self_attn.q_proj", "mixer.ask"
        ): value
        for name, value in make_weights().items()
    }
    save_file(renamed, tmp_path / "renamed.safetensors")
    outcome = run(
        "weights",
        tmp_path / "renamed.safetensors",
        reference,
        "--rules-out",
        tmp_path / "names.yaml",
    )
    assert outcome.exit_code == 0
    rules = load_rules([tmp_path / "names.yaml"])
    assert (
        rules.resolve_parameter("trunk.segment.1.mixer.ask.weight") == "layers.1.attention.q.weight"
    )
    assert run("weights", reference, reference, "--rules-out", "-", "-q").stdout.endswith(
        "that both checkpoints have.\n"
    )


def test_help(run: Run) -> None:
    assert "Exit codes:" in run("weights", "--help").stdout
    assert run("weights", "compare", "-h").stdout == run("weights", "-h").stdout


def test_a_misspelled_command_is_suggested(run: Run) -> None:
    result = run("weights", "convrt", "a.pt", "b.pt")
    assert result.exit_code == 2
    assert "'convrt' is neither a file nor a command. Did you mean 'convert'?" in result.stderr
