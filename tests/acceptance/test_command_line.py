"""The command line on real pairs: exit codes, JSON for other programs, rules of the user."""

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from dumpdiff import align
from dumpdiff.cli import main

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "result.schema.json").read_text())

#: What to compare -> (target, reference, verdict, exit code).
PAIRS = {
    "clean, graph mode": ("ms_graph", "v6.0_api_stack_summary", "aligned", 0),
    "clean, PyNative": ("ms_mf_none", "pt_none", "aligned", 0),
    "a wrong weight": ("ms_graph_bug_w1", "v1.0_api_stack", "diverged", 1),
    "a wrong scale": ("ms_mf_attn_scale", "pt_none", "diverged", 1),
    "the demo": ("demo_mindspore", "demo_pytorch", "diverged", 1),
    "unrelated models": ("ms_graph", "pt_none", "inconclusive", 3),
}


@pytest.fixture(scope="module")
def ran(dump, tmp_path_factory):
    """``ran("a wrong scale")``: (exit code, first line of output, JSON document) of one command."""
    outcomes = {}

    def run(pair):
        if pair not in outcomes:
            target, reference, *_ = PAIRS[pair]
            file = tmp_path_factory.mktemp("json") / "result.json"
            outcome = CliRunner().invoke(
                main, ["align", str(dump(target)), str(dump(reference)), "--json", str(file)]
            )
            first_line = outcome.stdout.splitlines()[0]
            document = json.loads(file.read_text())
            outcomes[pair] = (outcome.exit_code, first_line, document)
        return outcomes[pair]

    return run


@pytest.mark.parametrize("pair", PAIRS)
class TestRealPairs:
    def test_the_exit_code_is_the_verdict(self, ran, pair):
        code, _, document = ran(pair)
        assert (document["verdict"], code) == PAIRS[pair][2:]

    def test_the_json_follows_the_published_schema(self, ran, pair):
        jsonschema.Draft202012Validator(SCHEMA).validate(ran(pair)[2])

    def test_the_first_line_is_the_answer(self, ran, pair):
        _, line, document = ran(pair)
        assert line.startswith(f"{document['verdict']}: ")
        assert len(line) <= 100
        if document["verdict"] == "diverged":
            assert document["first_divergence"]["scope"] in line

    def test_what_diverged_has_findings_and_what_is_aligned_has_none(self, ran, pair):
        document = ran(pair)[2]
        if document["verdict"] != "inconclusive":
            assert bool(document["findings"]) == (document["verdict"] == "diverged")


def test_the_demo_finds_the_epsilon_that_was_put_in(ran):
    first = ran("the demo")[2]["first_divergence"]
    assert first["scope"] == "layers.1.post_attention_norm"
    assert first["kind"] == "introduced"


class TestRulesOfTheUser:
    """A rule file changes the kind of an operator: division becomes a kind of the user."""

    @pytest.fixture
    def rules(self, tmp_path):
        file = tmp_path / "mine.yaml"
        file.write_text(
            "operators:\n  kinds:\n"
            "    my_scaling: {class: elementwise, members: [mul, truediv, div]}\n"
        )
        return file

    def test_the_finding_has_the_kind_of_the_rule(self, dump, rules):
        pair = dump("ms_mf_attn_scale"), dump("pt_none")
        renamed = align(*pair, rules=[rules]).first_divergence
        shipped = align(*pair).first_divergence
        assert renamed is not None
        assert shipped is not None
        assert "my_scaling" in renamed.title
        assert "my_scaling" not in shipped.title
        assert renamed.target_ops == shipped.target_ops

    def test_the_command_line_takes_it(self, dump, rules):
        pair = [str(dump("ms_mf_attn_scale")), str(dump("pt_none"))]
        outcome = CliRunner().invoke(main, ["align", *pair, "--rules", str(rules)])
        assert outcome.exit_code == 1
        assert "my_scaling" in outcome.stdout

    def test_with_a_looser_tolerance_a_small_fault_is_noise(self, dump, tmp_path):
        """A million units of float32 roundoff are 6 %; the wrong epsilon changes less than 1 %."""
        file = tmp_path / "loose.yaml"
        file.write_text(
            "tolerances:\n  base_units: {value: 1000000, reason: a test, source: a test}\n"
        )
        pair = dump("demo_mindspore"), dump("demo_pytorch")
        assert align(*pair).verdict == "diverged"
        assert align(*pair, rules=[file]).verdict == "aligned"

    def test_a_wrong_rule_file_is_wrong_usage(self, dump, tmp_path):
        file = tmp_path / "wrong.yaml"
        file.write_text("operators: {kinds: {add: {class: no_such_class}}}\n")
        pair = [str(dump("ms_mf_none")), str(dump("pt_none"))]
        outcome = CliRunner().invoke(main, ["align", *pair, "--rules", str(file)])
        assert outcome.exit_code == 2
        assert "wrong.yaml" in outcome.stderr
