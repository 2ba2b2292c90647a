"""The JSON of a result follows the published schema and RFC 8259, and nothing is lost."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import jsonschema
import pytest
from results import BASELINE, STATES, UNPAIRED, make_result

from dumpdiff.model.result import Result
from dumpdiff.model.trace import Source
from dumpdiff.model.verdict import VALUE_STATES
from dumpdiff.reports.alignment import json as report

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "result.schema.json").read_text())


def write_json(result: Result) -> Any:
    def refuse(token: str) -> NoReturn:
        raise AssertionError(f"{token} is no JSON")

    stream = io.BytesIO()
    report.write(result, stream)
    return json.loads(stream.getvalue(), parse_constant=refuse)


def check_schema(document: Any) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_the_schema_itself_is_valid_and_of_this_version() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema_version"]["const"] == report.SCHEMA_VERSION


@pytest.mark.parametrize("verdict", ["aligned", "diverged", "inconclusive"])
def test_every_verdict_follows_the_schema(verdict: str) -> None:
    findings = make_result().findings if verdict == "diverged" else ()
    document = write_json(make_result(verdict=verdict, findings=findings))
    check_schema(document)
    assert document["verdict"] == verdict
    assert (document["first_divergence"] is None) == (verdict != "diverged")


@pytest.mark.parametrize(
    "field",
    [
        "verdict",
        "findings",
        "coverage",
        "states",
        "uncompared",
        "unmatched",
        "noise_floor",
        "problems",
    ],
)
def test_the_schema_requires_every_field(field: str) -> None:
    document = write_json(make_result())
    del document[field]
    with pytest.raises(jsonschema.ValidationError, match=field):
        check_schema(document)


def test_the_schema_refuses_unknown_words() -> None:
    document = write_json(make_result())
    document["findings"][0]["kind"] = "bad luck"
    with pytest.raises(jsonschema.ValidationError, match="bad luck"):
        check_schema(document)


def test_a_finding_has_every_field() -> None:
    finding = make_result().findings[0]
    document = write_json(make_result())["findings"][0]
    assert document["target_ops"] == list(finding.target_ops)
    assert document["reference_ops"] == ["Torch.rsqrt.3.forward"]
    assert document["slots"] == [{"target": "output.0", "reference": "output.0"}]
    assert document["source"] == {"target": "model.py:46"}
    assert document["tolerance"] == 1e-5
    fields = {name for name in vars(finding) if name != "explainer"}
    assert set(document) == fields | {"id"}


def test_first_divergence_is_the_finding_of_rank_1() -> None:
    document = write_json(make_result())
    assert document["first_divergence"] == document["findings"][0]


def test_an_isolated_difference_is_a_finding_and_no_divergence() -> None:
    isolated = replace(make_result().findings[0], kind="isolated")
    document = write_json(make_result(verdict="inconclusive", findings=(isolated,)))
    check_schema(document)
    assert document["first_divergence"] is None
    assert document["findings"][0]["kind"] == "isolated"


def test_not_measured_is_null_and_infinite_is_a_word() -> None:
    document = write_json(make_result(noise_floor=float("nan")))
    check_schema(document)
    metrics = document["findings"][0]["metrics"]
    assert metrics["cosine"] is None
    assert metrics["max_relative"] == "Infinity"
    assert document["noise_floor"] is None
    assert document["coverage"]["reference"]["optimizer"]["share"] is None


def test_numbers_keep_every_digit() -> None:
    noise = math.nextafter(0.1, 1)
    assert write_json(make_result(noise_floor=noise))["noise_floor"] == noise


def test_numpy_values_become_plain_ones() -> None:
    assert write_json(make_result())["details"] == {
        "min_coverage": 0.5,
        "bridges": {"split": 3},
        "verified_edges": 0.998,
    }


def test_unmatched_ops_of_both_sides_are_listed() -> None:
    unmatched = write_json(make_result())["unmatched"]
    assert [row["op"] for row in unmatched["target"]] == ["Default/Cast-op1", "Default/Cast-op2"]
    assert unmatched["reference"][0]["reason"] == "dead end"


def test_problems_say_side_file_and_line() -> None:
    problems = write_json(make_result())["problems"]
    assert problems[1] == {
        "side": "target",
        "file": "statistic.csv",
        "line": 1,
        "message": "cell 1 is no number",
        "count": 1,
    }


def test_pairs_are_counted_by_state() -> None:
    assert write_json(make_result())["pairs"] == {"agreeing": 1, "introduced": 1}


def test_values_and_ops_are_counted_by_state() -> None:
    document = write_json(make_result())
    assert document["states"] == STATES
    forward = document["coverage"]["target"]["forward"]
    assert (forward["values"], forward["compared_values"]) == (180, 150)
    assert (forward["reconverged_values"], forward["value_share"]) == (12, 150 / 180)


def test_the_schema_has_the_states_of_the_code() -> None:
    assert tuple(SCHEMA["$defs"]["state"]["enum"]) == tuple(VALUE_STATES)
    document = write_json(make_result())
    document["states"]["target"]["forward"]["values"] = {"fine": 1}
    with pytest.raises(jsonschema.ValidationError, match="fine"):
        check_schema(document)


def test_values_that_were_not_compared_are_counted_by_reason() -> None:
    state, reason = UNPAIRED
    assert write_json(make_result())["uncompared"] == [
        {
            "side": "target",
            "phase": "forward",
            "state": "reconverged",
            "reason": "an equivalent decomposition",
            "values": 12,
        },
        {"side": "target", "phase": "forward", "state": state, "reason": reason, "values": 18},
        {"side": "reference", "phase": "forward", "state": state, "reason": reason, "values": 1},
    ]


def test_a_path_that_is_no_utf8_survives() -> None:
    side = replace(
        make_result().target, source=Source("/dumps/\udcff模型", "mindspore", "", "mindspore")
    )
    assert write_json(make_result(target=side))["target"]["path"] == "/dumps/\udcff模型"


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="no JSON form for set"):
        report.to_json(make_result(details={"odd": {1, 2}}))


def test_the_same_result_gives_the_same_bytes() -> None:
    first, second = io.BytesIO(), io.BytesIO()
    report.write(make_result(), first)
    report.write(make_result(), second)
    assert first.getvalue() == second.getvalue()


def test_the_baseline_has_its_source_and_spread() -> None:
    document = write_json(make_result(baseline=BASELINE))
    check_schema(document)
    assert document["baseline"]["source"]["path"] == "/data/again"
    assert (document["baseline"]["median"], document["baseline"]["largest"]) == (1.2e-7, 4e-6)


def test_without_a_baseline_there_is_none() -> None:
    assert write_json(make_result())["baseline"] is None


def test_a_process_is_next_to_the_rank_that_selects_it() -> None:
    """Programs that read earlier forms know only the rank."""
    result = make_result()
    source = replace(result.reference.source, process=473)
    document = write_json(replace(result, reference=replace(result.reference, source=source)))
    check_schema(document)
    assert (document["reference"]["rank"], document["reference"]["process"]) == (473, 473)
    assert (document["target"]["rank"], document["target"]["process"]) == (0, None)
