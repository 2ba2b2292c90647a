"""The checklists: what settings, environment and logs answer, and what is left to a person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dumpdiff import training_logs
from dumpdiff.run_settings import Settings, compare, read_settings
from dumpdiff.run_settings.checklist import Answer, Checklist, Item, check, load_items
from dumpdiff.run_settings.settings import SettingValue
from dumpdiff.run_settings.table import load_table
from dumpdiff.training_logs import read_log

SAMPLES = Path(__file__).parents[1] / "samples"
TITLES, ITEMS = load_items()


@pytest.fixture
def pair() -> tuple[Settings, Settings]:
    return read_settings(SAMPLES / "llama.yaml"), read_settings(SAMPLES / "llama_megatron.sh")


def set_values(side: Settings, **values: Any) -> Settings:
    """Return the same run with other values; dots in names are written as double underscores."""
    changed_values = dict(side.values)
    for name, value in values.items():
        changed_values[name.replace("__", ".")] = SettingValue(value, "here:1")
    return replace(side, values=changed_values)


def find_answer(checklist: Checklist, name: str) -> Answer:
    return next(answer for answer in checklist.answers if answer.item.name == name)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_items_are_well_formed(item: Item) -> None:
    rows = {row.name: row for row in load_table().rows}
    assert item.section in TITLES
    assert item.requirement
    assert set(item.advise) <= rows.keys()
    assert not item.settings or any(row.item == item.name for row in rows.values())


def test_every_item_that_a_setting_answers_exists() -> None:
    assert {row.item for row in load_table().rows} - {""} <= {item.name for item in ITEMS}


def test_sections_come_in_order_and_none_is_empty() -> None:
    assert list(dict.fromkeys(item.section for item in ITEMS)) == list(TITLES)


def test_without_settings_everything_is_left_to_tick_off() -> None:
    checklist = check()
    assert {answer.state for answer in checklist.answers} == {"open"}
    assert checklist.verdict == "inconclusive"
    assert checklist.to_stage().headline.startswith("nothing was given that answers an item, ")


def test_what_settings_answer_is_answered(pair: tuple[Settings, Settings]) -> None:
    checklist = check(compare(*pair))
    assert checklist.verdict == "agree"
    assert {answer.item.name for answer in checklist.select_answers("holds")} >= {
        "layers",
        "norm-epsilon",
        "optimizer",
        "batch",
    }
    assert find_answer(checklist, "experts").state == "open"
    assert find_answer(checklist, "topk").state == "unused"
    assert find_answer(checklist, "template").state == "open"


def test_a_difference_fails_its_item(pair: tuple[Settings, Settings]) -> None:
    target = set_values(pair[0], optimizer__eps=1e-6)
    checklist = check(compare(target, pair[1]))
    assert checklist.verdict == "differ"
    assert find_answer(checklist, "adam-eps").state == "fails"
    assert checklist.to_stage().headline.startswith(
        "adam epsilon: 1e-06 (here:1), 1e-08 (llama_megatron.sh:43); "
    )


def test_alike_on_both_sides_is_not_yet_as_advised(pair: tuple[Settings, Settings]) -> None:
    target = set_values(pair[0], model__model_config__hidden_dropout=0.1)
    answer = find_answer(
        check(compare(target, set_values(pair[1], hidden_dropout="0.1"))), "dropout"
    )
    assert answer.state == "advice"
    assert answer.evidence == (
        "hidden dropout is 0.1 in MindSpore Transformers, advised 0",
        "hidden dropout is 0.1 in Megatron-LM, advised 0",
    )


def test_parallel_settings_are_advised_not_failed(pair: tuple[Settings, Settings]) -> None:
    checklist = check(compare(set_values(pair[0], parallel_config__model_parallel=2), pair[1]))
    assert find_answer(checklist, "parallel").state == "advice"
    assert checklist.verdict == "agree"


def test_what_the_data_must_show_is_not_ticked_off_by_settings(
    pair: tuple[Settings, Settings],
) -> None:
    answer = find_answer(check(compare(*pair)), "vocabulary")
    assert answer.state == "open"
    assert answer.evidence[0].startswith("vocabulary: 32000")


def test_what_cannot_be_told_is_said(pair: tuple[Settings, Settings]) -> None:
    reference = replace(
        pair[1],
        values={
            **pair[1].values,
            "num_layers": SettingValue("$1", "a.sh:3", "only the shell knows"),
        },
    )
    checklist = check(compare(pair[0], reference))
    assert (checklist.verdict, find_answer(checklist, "layers").state) == (
        "inconclusive",
        "inconclusive",
    )


@pytest.mark.parametrize(
    ("value", "state"), [("INFNAN_MODE", "holds"), ("SATURATION_MODE", "fails"), (None, "advice")]
)
def test_variables_of_a_launch_script_are_checked(value: str | None, state: str) -> None:
    script = read_settings(SAMPLES / "msrun.sh")
    variables = (
        {}
        if value is None
        else {"MS_ASCEND_CHECK_OVERFLOW_MODE": SettingValue(value, "msrun.sh:1")}
    )
    target = replace(script, environment=variables)
    assert find_answer(check(compare(target, target)), "overflow").state == state


def test_defaults_of_both_sides_tick_off_nothing(tmp_path: Path) -> None:
    """A YAML without a model says nothing about the model, not even that it has no experts."""
    (tmp_path / "run.yaml").write_text(
        "optimizer: {type: AdamW, eps: 1.0e-8}\nlr_schedule: {learning_rate: 1.0e-4}\n"
        "runner_config: {batch_size: 1, sink_mode: true}\n"
    )
    side = read_settings(tmp_path / "run.yaml")
    checklist = check(compare(side, side))
    assert {answer.item.section for answer in checklist.select_answers("holds")} == {
        "optimizer",
        "other",
    }
    assert find_answer(checklist, "adam-eps").state == "holds"
    assert find_answer(checklist, "norm-epsilon").state == "open"
    assert find_answer(checklist, "topk").state == "open"
    assert "by default" in find_answer(checklist, "norm-epsilon").evidence[0]


@pytest.mark.parametrize(
    ("settings", "state"),
    [((None, None), "open"), ((None, True), "advice"), ((True, None), "advice"),
     ((True, True), "holds")],
)  # fmt: skip
def test_both_runs_must_be_deterministic_and_variables_alone_do_not_tell(
    pair: tuple[Settings, Settings], settings: tuple[bool | None, bool | None], state: str
) -> None:
    """A setting that is added makes the item no weaker than variables alone do."""
    target, reference = pair
    variables = {
        name: SettingValue(value, "run.sh:1")
        for name, value in (("HCCL_DETERMINISTIC", "true"), ("ASCEND_LAUNCH_BLOCKING", "1"))
    }
    target = replace(target, environment=variables)
    if settings[0]:
        target = set_values(target, context__deterministic="ON")
    if settings[1]:
        reference = set_values(reference, deterministic_mode=True)
    answer = find_answer(check(compare(target, reference)), "determinism")
    assert answer.state == state


@pytest.mark.parametrize(("value", "state"), [(False, "holds"), (True, "fails"), (None, "holds")])
def test_keys_of_a_yaml_are_checked(
    pair: tuple[Settings, Settings], value: bool | None, state: str
) -> None:
    target = pair[0] if value is None else set_values(pair[0], context__enable_graph_kernel=value)
    assert find_answer(check(compare(target, pair[1])), "graph-kernel").state == state


def test_logs_answer_what_they_can() -> None:
    target, reference = (
        read_log(SAMPLES / "logs" / name) for name in ("megatron_0.12_nan.log", "megatron_0.12.log")
    )
    checklist = check(logs=training_logs.compare(target, reference))
    assert find_answer(checklist, "learning-rate").state == "fails"
    assert find_answer(checklist, "overflow").state == "fails"
    assert find_answer(checklist, "standard-length").state == "inconclusive"
