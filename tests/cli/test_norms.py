"""``dumpdiff norms`` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from schemas import check

from .conftest import Run

Dump = Callable[[str], Path]

MEGATRON = Path(__file__).parents[1] / "samples" / "norms" / "megatron_0.12_local_norm.log"


@pytest.mark.parametrize(
    ("target", "code", "begins"),
    [
        ("ms_mf_none", 0, "norms agree: 48 parameters' gradient norms equal within 8.3e-7"),
        (
            "ms_mf_attn_scale",
            1,
            "norms differ: everywhere, including the head or the final norm; 47 of 48",
        ),
        ("ms_graph", 1, "norms differ: everywhere"),
    ],
)
def test_the_first_line_is_the_answer_and_the_exit_code(
    run: Run, dump: Dump, target: str, code: int, begins: str
) -> None:
    result = run("norms", dump(target), dump("pt_none"), "-q")
    assert (result.exit_code, result.stdout.count("\n")) == (code, 1)
    assert result.stdout.startswith(begins)


def test_inconclusive_has_an_exit_code_of_its_own(run: Run, tmp_path: Path) -> None:
    for name, factor in (("a.txt", 1.0), ("b.txt", 1.004)):
        values = (0.5 * 1.3**n * (factor if n % 2 else 1 / factor) for n in range(12))
        (tmp_path / name).write_text("\n".join(f"{value:.9f}" for value in values))
    result = run("norms", tmp_path / "a.txt", tmp_path / "b.txt", "-q")
    assert result.exit_code == 3
    assert result.stdout.startswith("norms inconclusive: 12 norms differ by up to 4.0e-3")
    assert (
        run("norms", tmp_path / "a.txt", tmp_path / "b.txt", "--precision", "bfloat16").exit_code
        == 0
    )


def test_the_report_names_both_sides_the_worst_and_what_they_have_in_common(
    run: Run, dump: Dump
) -> None:
    report = run("norms", dump("ms_mf_attn_scale"), dump("pt_none")).stdout
    assert (
        "target     gradients in a dump of MindSpore, step 1: 48 norms, together 2.69012" in report
    )
    assert "batch, labels, loss or forward pass; compare the loss of step 1" in report
    assert report.index("layers.1.attention.k.weight") < report.index("layers.0.mlp.up_proj.weight")
    assert "38 more rows with -v" in report


def test_every_row_is_printed_on_demand(run: Run, dump: Dump) -> None:
    report = run("norms", dump("ms_mf_none"), dump("pt_none"), "-v").stdout
    assert report.count("   rule") == 47  # and lm_head.weight, which is called so on both sides
    assert "more rows" not in report


def test_a_step_is_chosen(run: Run) -> None:
    result = run("norms", MEGATRON, MEGATRON, "--step", 2)
    assert result.exit_code == 0
    assert "step 2: 28 norms, together 1.48" in result.stdout


def test_the_json_holds_every_row(run: Run, dump: Dump) -> None:
    document = json.loads(
        run("norms", dump("ms_mf_attn_scale"), dump("pt_none"), "--json", "-").stdout
    )
    check(document, "norms")
    assert (document["name"], document["verdict"], document["precision"]) == (
        "norms",
        "differ",
        "float32",
    )
    assert [pattern["kind"] for pattern in document["patterns"]] == ["everything"]
    assert len(document["rows"]) == 48
    worst = document["rows"][0]
    assert (worst["path"], worst["state"], worst["evidence"]) == (
        "layers.1.attention.k.weight",
        "differ",
        "rule",
    )
    assert document["coverage"] == {"target": 1.0, "reference": 1.0}
    assert document["target"]["global_norm"] is None


def test_further_rules_name_parameters(run: Run, dump: Dump, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(
        "blok.0.zelf.vraag.weight 0.5\nblok.0.zelf.antwoord.weight 0.7\n"
    )
    (tmp_path / "b.txt").write_text(
        "model.layers.0.self_attn.q_proj.weight 0.5\nmodel.layers.0.self_attn.o_proj.weight 0.9\n"
    )
    (tmp_path / "rules.yaml").write_text(
        "scopes:\n  layers:\n    layers.{layer}: ['blok.{layer}']\n  block:\n    modules:\n"
        "      attention.q: [zelf.vraag]\n      attention.out: [zelf.antwoord]\n"
    )
    result = run(
        "norms", tmp_path / "a.txt", tmp_path / "b.txt", "--rules", tmp_path / "rules.yaml", "-q"
    )
    assert result.stdout.startswith(
        "norms differ: 1 of 2 parameters' gradient norms differ, most layers.0.attention.out"
    )


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: None, "no such file or folder"),
        (lambda path: path.write_text("nothing\n"), "contains no gradient norms"),
        (lambda path: path.mkdir(), "contains no logs, gradients or dump"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(50)), "expected a checkpoint"),
    ],
    ids=["nothing", "a text", "an empty folder", "a broken archive"],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    run: Run, tmp_path: Path, write: Callable[[Path], object], message: str
) -> None:
    write(tmp_path / "a")
    result = run("norms", tmp_path / "a", MEGATRON)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr
