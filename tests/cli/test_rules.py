"""``dumpdiff rules``."""

from pathlib import Path

from click.testing import CliRunner

from dumpdiff.cli import main


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["rules", *arguments])
    return result.exit_code, result.output


def test_check_counts_the_shipped_rules() -> None:
    code, output = run("check")
    assert code == 0
    assert "scope patterns" in output
    assert "rules are valid" in output


def test_check_refuses_a_bad_file_in_one_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("operators:\n  kinds:\n    mine: {class: magic}\n", encoding="utf-8")
    code, output = run("check", str(bad))
    assert code == 2
    assert f"{bad}:3: unknown class 'magic'" in output
    assert "Traceback" not in output


def test_explain_prints_every_reading_and_its_rules() -> None:
    code, output = run("explain", "model.layers.0.self_attn.q_proj.weight", "Functional.linear")
    assert code == 0
    assert "layers.0.attention.q.weight" in output
    assert "scopes/huggingface.yaml:" in output
    assert "matmul" in output


def test_explain_uses_further_rules(tmp_path: Path) -> None:
    rule_file = tmp_path / "mine.yaml"
    rule_file.write_text(
        "operators: {kinds: {frob: {class: linear, members: [Blah]}}}", encoding="utf-8"
    )
    code, output = run("explain", "--rules", str(rule_file), "Blah")
    assert code == 0
    assert f"{rule_file}:1: Blah -> frob" in output


def test_suggest_prints_a_file_that_check_accepts(dump, tmp_path: Path) -> None:
    code, output = run("suggest", str(dump("ms_mf_none")), str(dump("pt_none")))
    assert code == 0
    assert (
        "- [mul]  # seen 4 times" in output
    )  # scores are multiplied by 0.25 on one side, divided by 4 on the other
    learned = tmp_path / "learned.yaml"
    learned.write_text(output, encoding="utf-8")
    assert run("check", str(learned))[0] == 0


def test_suggest_has_nothing_new_once_its_rules_are_given(dump, tmp_path: Path) -> None:
    pair = str(dump("ms_mf_none")), str(dump("pt_none"))
    learned = tmp_path / "learned.yaml"
    learned.write_text(run("suggest", *pair)[1], encoding="utf-8")
    code, output = run("suggest", "--rules", str(learned), *pair)
    assert code == 0
    assert "Nothing to suggest" in output


def test_suggest_refuses_an_empty_folder_in_one_line(tmp_path: Path) -> None:
    code, output = run("suggest", str(tmp_path), str(tmp_path / "none"))
    assert code == 2
    assert len(output.splitlines()) == 1


def test_help_has_examples() -> None:
    for command in ("check", "explain", "suggest"):
        assert "Examples:" in run(command, "--help")[1]
