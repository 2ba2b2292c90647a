"""``dumpdiff checklist`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

from schemas import check

from dumpdiff.run_settings.checklist import load_items

from .conftest import Run

SAMPLES = Path(__file__).parents[1] / "samples"
PAIR = (SAMPLES / "llama.yaml", SAMPLES / "llama_megatron.sh")


def test_without_settings_it_prints_every_item_to_tick_off(run: Run) -> None:
    result = run("checklist")
    assert result.exit_code == 0
    assert result.stdout.count("\n[ ] ") == len(load_items()[1])


def test_with_settings_it_ticks_off_what_holds(run: Run) -> None:
    result = run("checklist", *PAIR)
    assert result.exit_code == 0
    assert "[x] The norm has the same epsilon" in result.stdout
    assert "[-] The router computes in float32" in result.stdout
    assert "[~] One card is enough to align\n      data parallel is 8" in result.stdout


def test_an_item_that_fails_is_the_answer(run: Run, tmp_path: Path) -> None:
    changed_settings = tmp_path / "wrong.yaml"
    changed_settings.write_text(PAIR[0].read_text().replace("[0.9, 0.95]", "[0.9, 0.999]"))
    result = run("checklist", changed_settings, PAIR[1], "-q")
    assert result.exit_code == 1
    assert result.stdout.startswith("checklist differ: betas: 0.9, 0.999 (wrong.yaml:11)")


def test_markdown_is_a_task_list(run: Run) -> None:
    task_list = run("checklist", *PAIR, "--markdown", "-").stdout
    assert task_list.startswith("# Checklist: ")
    assert "\n## Model structure\n\n- [x] The number of layers is the same\n" in task_list
    assert "- [ ] *advised*: One card is enough to align\n  - `data parallel is 8" in task_list


def test_logs_are_taken_into_account(run: Run) -> None:
    logs = SAMPLES / "logs"
    result = run("checklist", "--logs", logs / "megatron_0.12_nan.log", logs / "megatron_0.12.log")
    assert result.exit_code == 1
    assert "[!] Overflow is treated alike" in result.stdout


def test_the_json_holds_every_item(run: Run) -> None:
    document = json.loads(run("checklist", *PAIR, "--json", "-").stdout)
    check(document, "checklist")
    assert (document["name"], document["verdict"], len(document["items"])) == (
        "checklist",
        "agree",
        len(load_items()[1]),
    )


def test_settings_of_one_run_alone_are_wrong_usage(run: Run) -> None:
    assert run("checklist", PAIR[0]).exit_code == 2
