"""How values are spread over ranks, as a rule file says it."""

from pathlib import Path

import pytest

from dumpdiff.rulebook import RuleError, Rules, load_rules


def load(tmp_path: Path, text: str) -> Rules:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    return load_rules([file])


def test_shipped_rules_say_nothing_about_ranks(rules: Rules) -> None:
    assert rules.relations == {"target": {}, "reference": {}}
    assert "relations between ranks" not in rules.count_rules()


def test_a_relation_is_a_word_or_has_ranks_axis_and_factor(tmp_path: Path) -> None:
    rules = load(
        tmp_path,
        "relations:\n"
        "  target:\n"
        "    layers.#.norm.weight: replicated\n"
        '    "layers.#.fc1: Linear output.0":\n'
        "      {relation: concatenated, ranks: [[0, 2], [1, rank 3]], axis: 1}\n"
        "  reference:\n"
        "    layers.#.fc2.bias: {relation: sum, factor: 0.5}\n",
    )
    target, reference = rules.relations["target"], rules.relations["reference"]
    assert target["layers.#.norm.weight"].relation == "replicated"
    fc1 = target["layers.#.fc1: Linear output.0"]
    assert fc1.groups == (("rank 0", "rank 2"), ("rank 1", "rank 3"))
    assert (fc1.axis, fc1.factor, fc1.place.line) == (1, 1.0, 4)
    assert reference["layers.#.fc2.bias"].factor == 0.5
    assert rules.count_rules()["relations between ranks"] == 3


def test_a_later_file_decides(tmp_path: Path) -> None:
    files = []
    for number, relation in enumerate(("sum", "local")):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(f"relations: {{target: {{fc1.weight: {relation}}}}}\n")
    assert load_rules(files).relations["target"]["fc1.weight"].relation == "local"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("replicate", "unknown relation 'replicate'; did you mean 'replicated'?"),
        ("[sum]", "expected a mapping"),
        ("{axis: 0}", "'relation' is missing"),
        ("{relation: sum, axis: 0}", "'sum' has no axis, only 'concatenated' has"),
        ("{relation: concatenated, axis: 0.5}", "expected the number of an axis"),
        ("{relation: replicated, ranks: [[0, 1]]}", "'replicated' has no groups of ranks"),
        ("{relation: sum, ranks: [[0, 1], [rank 1]]}", "'rank 1' is in two groups"),
        ("{relation: sum, ranks: [0, 1]}", "expected a list of names"),
        ("{relation: sum, factor: 0}", "expected a factor above 0"),
        ("{relation: local, factor: 2}", "expected a factor above 0 of a combined value"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_line(
    tmp_path: Path, rule: str, message: str
) -> None:
    with pytest.raises(RuleError) as raised:
        load(tmp_path, f"relations:\n  target:\n    fc1.weight: {rule}\n")
    assert raised.value.line == 3
    assert message in raised.value.reason
