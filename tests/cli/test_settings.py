"""``dumpdiff settings`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from schemas import check

from .conftest import Run

SAMPLES = Path(__file__).parents[1] / "samples"
YAML, SCRIPT = SAMPLES / "llama.yaml", SAMPLES / "llama_megatron.sh"


def test_the_first_line_is_the_answer_and_the_exit_code(run: Run, tmp_path: Path) -> None:
    agreeing = run("settings", YAML, SCRIPT)
    assert agreeing.exit_code == 0
    assert agreeing.stdout.startswith("settings agree: ")
    changed_settings = tmp_path / "wrong.yaml"
    changed_settings.write_text(
        YAML.read_text().replace("rms_norm_eps: 1.e-5", "rms_norm_eps: 1.e-6")
    )
    differing = run("settings", changed_settings, SCRIPT, "-q")
    assert differing.exit_code == 1
    assert (
        differing.stdout
        == "settings differ: norm epsilon: 1e-06 (wrong.yaml:55), 1e-05 (llama_megatron.sh:25)\n"
    )


def test_inconclusive_has_an_exit_code_of_its_own(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text(SCRIPT.read_text().replace("--num-layers 2", "--num-layers $LAYERS"))
    result = run("settings", YAML, script)
    assert result.exit_code == 3
    assert result.stdout.startswith(
        "settings inconclusive: layers: 2 (llama.yaml:48); Megatron-LM: its value is $LAYERS"
    )


def test_verbose_lists_every_row_that_means_something(run: Run) -> None:
    assert "learning rate" in run("settings", YAML, SCRIPT, "-v").stdout
    assert "learning rate" not in run("settings", YAML, SCRIPT).stdout


def test_the_json_holds_every_row(run: Run) -> None:
    result = run("settings", YAML, SCRIPT, "--json", "-")
    document = json.loads(result.stdout)
    check(document, "settings")
    assert (document["name"], document["verdict"]) == ("settings", "agree")
    rows = {row["setting"]: row for row in document["settings"]}
    assert rows["norm_epsilon"]["target"] == {
        "value": 1e-05,
        "origin": "set",
        "names": ["model.model_config.rms_norm_eps"],
        "places": ["llama.yaml:55"],
        "reason": "",
    }
    assert "settings agree" in result.stderr


def test_wrong_input_is_one_line_and_exit_code_2(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("echo hello\n")
    result = run("settings", YAML, tmp_path / "a.sh")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "no training is started" in result.stderr
