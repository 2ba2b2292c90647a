"""The schema of a triage: real documents follow it, it has all words and refuses others."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from typing import Any, get_args

import jsonschema
import pytest
from schemas import TRIAGE, check

from dumpdiff.batches import batch, checks, relation
from dumpdiff.diagnosis import case as cases
from dumpdiff.diagnosis import places, symptom
from dumpdiff.diagnosis.evidence import STAGES
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.gradient_norms import pairs, patterns, row
from dumpdiff.model.verdict import OUTCOME_EXIT_CODES, Verdict
from dumpdiff.optimizers import gradient_scaling, groups, rule
from dumpdiff.reports.conversion import json as convert_json
from dumpdiff.reports.stages import optimizer, stage
from dumpdiff.reports.triage import json as triage_json
from dumpdiff.reports.weights import json as weights_json
from dumpdiff.run_settings import checklist, row_value, table
from dumpdiff.run_settings import comparison as settings
from dumpdiff.run_settings.settings import Framework
from dumpdiff.training_logs import comparison as log_comparison
from dumpdiff.weight_comparison import result as weights

DEFINITIONS = TRIAGE["$defs"]
RESULTS = ("settings", "checklist", "data", "logs", "norms", "weights", "dumps", "optimizer")


@pytest.fixture(scope="module")
def document(triaged: TriageResult) -> dict[str, Any]:
    return write_json(triaged)


def write_json(triaged: TriageResult) -> dict[str, Any]:
    stream = io.BytesIO()
    triage_json.write(triaged, stream)
    document: dict[str, Any] = json.loads(stream.getvalue())
    return document


def read_enum(*path: str) -> list[str]:
    """Return the words that the schema allows at a path of definitions and properties."""
    node = DEFINITIONS[path[0]]
    for name in path[1:]:
        node = node["items"] if name == "[]" else node["properties"][name]
    words: list[str] = node.get("enum") or node["oneOf"][0]["enum"]
    return words


def test_the_schema_itself_is_valid_and_of_these_versions() -> None:
    jsonschema.Draft202012Validator.check_schema(TRIAGE)
    versions = {
        "": triage_json.SCHEMA_VERSION,
        "head": stage.SCHEMA_VERSION,
        "optimizer": optimizer.SCHEMA_VERSION,
        "weights": weights_json.SCHEMA_VERSION,
        "convert": convert_json.SCHEMA_VERSION,
    }
    for name, version in versions.items():
        definition = DEFINITIONS[name] if name else TRIAGE
        assert definition["properties"]["schema_version"]["const"] == version, name


def test_a_triage_of_all_stages_follows_the_schema(document: dict[str, Any]) -> None:
    check(document)
    assert set(document["results"]) == set(RESULTS)


def test_a_triage_of_one_stage_follows_the_schema(weights_only: TriageResult) -> None:
    check(write_json(weights_only))


@pytest.mark.parametrize("name", RESULTS)
def test_each_result_follows_its_own_definition(document: dict[str, Any], name: str) -> None:
    check(document["results"][name], name)
    with pytest.raises(jsonschema.ValidationError):
        check(document["results"][name], "weights" if name != "weights" else "settings")


@pytest.mark.parametrize("name", RESULTS)
def test_nothing_may_be_missing_and_nothing_may_be_new(document: dict[str, Any], name: str) -> None:
    result = document["results"][name]
    for field in result.keys() - {"paired"}:  # of one run alone there is none
        with pytest.raises(jsonschema.ValidationError, match=f"'{field}' is a required property"):
            check({key: value for key, value in result.items() if key != field}, name)
    with pytest.raises(jsonschema.ValidationError, match="weather"):
        check({**result, "weather": "fine"}, name)


def test_the_optimizer_of_a_triage_is_of_two_runs(document: dict[str, Any]) -> None:
    results = {**document["results"], "optimizer": dict(document["results"]["optimizer"])}
    del results["optimizer"]["paired"]
    with pytest.raises(jsonschema.ValidationError, match="'paired' is a required property"):
        check({**document, "results": results})


def test_an_unknown_word_is_refused(document: dict[str, Any]) -> None:
    for field in ("outcome", "verdict", "symptom", "cause"):
        with pytest.raises(jsonschema.ValidationError, match="bad luck"):
            check({**document, "conclusion": {**document["conclusion"], field: "bad luck"}})


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("stage",), STAGES),
        (("verdict",), get_args(Verdict)),
        (("place",), get_args(places.Place)),
        (("cause",), get_args(places.Cause)),
        (("conclusion", "symptom"), get_args(symptom.Symptom)),
        (("conclusion", "outcome"), tuple(OUTCOME_EXIT_CODES)),
        (("settings", "settings", "[]", "state"), get_args(settings.State)),
        (("settings", "settings", "[]", "effect"), get_args(table.Effect)),
        (("settings_side", "framework"), get_args(Framework)),
        (("setting_value", "origin"), get_args(row_value.ValueOrigin)),
        (("checklist", "items", "[]", "state"), get_args(checklist.State)),
        (("data", "findings", "[]", "state"), get_args(checks.State)),
        (("data", "relation"), get_args(relation.Kind)),
        (("data_side", "kind"), get_args(batch.Kind)),
        (("logs", "onset"), get_args(log_comparison.Onset)),
        (("norms", "rows", "[]", "state"), get_args(row.State)),
        (("norms", "rows", "[]", "evidence"), get_args(pairs.PairEvidence)),
        (("norms", "patterns", "[]", "kind"), get_args(patterns.Kind)),
        (("relation",), get_args(weights.Relation)),
        (
            ("update_state",),
            (groups.EXPLAINED, groups.AMBIGUOUS, groups.UNEXPLAINED, groups.UNMOVED),
        ),
        (
            ("fit", "gradient_scaling"),
            (
                gradient_scaling.UNSCALED,
                gradient_scaling.GLOBAL_NORM,
                gradient_scaling.TENSOR_NORM,
                gradient_scaling.ONE_FACTOR,
                gradient_scaling.STEP_FACTORS,
            ),
        ),
    ],
    ids="/".join,
)
def test_the_words_are_those_of_the_program(path: tuple[str, ...], words: tuple[str, ...]) -> None:
    assert read_enum(*path) == list(words)


def test_the_sections_are_those_of_the_tables() -> None:
    assert set(read_enum("settings", "settings", "[]", "section")) == {
        setting.section for setting in table.load_table().rows
    }
    assert read_enum("checklist", "items", "[]", "section") == list(checklist.load_items()[0])


def test_the_exit_code_of_every_outcome_is_told() -> None:
    description = DEFINITIONS["conclusion"]["properties"]["outcome"]["description"].replace(
        " (the place is not known)", ""
    )
    assert (
        ", ".join(f"{outcome} {code}" for outcome, code in OUTCOME_EXIT_CODES.items())
        in description
    )


def test_what_a_case_may_have_is_known() -> None:
    assert DEFINITIONS["run"]["required"] == [field.name for field in fields(cases.Run)]
    assert DEFINITIONS["case"]["required"] == [field.name for field in fields(cases.Case)]


def test_what_the_optimizer_says_of_two_runs_and_of_one() -> None:
    states = read_enum("update_state")
    assert read_enum("optimizer", "verdict") == [*get_args(Verdict), *states]
    aspects = (
        rule.CORRECTION,
        rule.DECAY_KIND,
        rule.EPSILON_PLACE,
        rule.MOMENTUM_KIND,
        rule.MOMENT_FORM,
        rule.SCALE,
    )
    assert DEFINITIONS["fit"]["properties"]["aspects"]["propertyNames"]["enum"] == list(aspects)
