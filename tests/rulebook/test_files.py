"""Rule files of the user: their effect, and the errors of bad files."""

from pathlib import Path
from textwrap import dedent

import pytest

from dumpdiff.model.errors import DumpError
from dumpdiff.rulebook import RuleError, Rules, list_shipped_files, load_rules


def write_rules(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    file = folder / name
    file.write_text(dedent(text), encoding="utf-8")
    return file


def test_rules_of_the_user_add_and_override(tmp_path: Path) -> None:
    file = write_rules(
        tmp_path,
        """\
        scopes:
          layers:
            layers.{layer}: ["stage_{layer}"]
          block:
            modules:
              attention.q: [mixer.query]
              attention.special: [attention.wq]
        operators:
          kinds:
            frobnicate: {class: linear, members: [FrobOp]}
            mul: {members: [Torch.add]}
        decompositions:
          operators:
            frobnicate: [[matmul, add]]
        tolerances:
          base_units: {value: 64, source: mine}
          classes:
            linear: {conditioning: 9, source: mine}
        """,
    )
    rules = load_rules([file])
    assert rules.resolve_scope("net.stage_3.mixer.query") == "layers.3.attention.q"
    assert rules.resolve_scope("layers.3.attention.wq") == "layers.3.attention.special"
    assert rules.resolve_scope("layers.3.attention.wk") == "layers.3.attention.k"
    assert rules.resolve_kind("Functional.frob_op") == "frobnicate"
    assert (rules.resolve_kind("Torch.add"), rules.resolve_kind("Tensor.add")) == ("mul", "add")
    assert rules.decompositions["frobnicate"] == (("matmul", "add"),)
    assert rules.get_conditioning("linear") == 9
    assert rules.compute_growth("matmul", 4) > 0
    assert rules.compute_tolerance("float32", "float32", "mul") == 64 * 2.0**-24


def test_later_files_win(tmp_path: Path) -> None:
    text = "scopes: {block: {modules: {attention.NAME: [attention.mix]}}}"
    files = [
        write_rules(tmp_path, text.replace("NAME", name), f"{name}.yaml")
        for name in ("first", "second")
    ]
    assert load_rules(files).resolve_scope("layers.0.attention.mix") == "layers.0.attention.second"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("scops: {}", 1, "unknown key 'scops'; did you mean 'scopes'?"),
        ("scopes:\n  blocks: {}", 2, "unknown key 'blocks'; did you mean 'block'?"),
        ("scopes:\n  block:\n    modules:\n      mlp.x: ['a..b']", 4, "bad pattern 'a..b'"),
        ("scopes:\n  block:\n    modules:\n      mlp.x:\n        - ok\n        - 'a.(b|c'", 6,
         "bad pattern 'a.(b|c'"),
        ("scopes:\n  block:\n    modules:\n      mlp.x: ['a.{layer']", 4, "bad pattern 'a.{layer'"),
        ("scopes:\n  layers:\n    '{a}.{a}': []", 3, "the same capture twice"),
        ("scopes:\n  layers:\n    layers.{layer}:\n      - stage.{stage}", 4,
         "uses {layer}, which the pattern"),
        ("scopes:\n  block:\n    modules:\n      mlp.x: ['b.{expert}']", 4,
         "different names would become one"),
        ("scopes:\n  block:\n    modules:\n      a: [x]\n      b: [x]", 5,
         "'x' already means 'a' (mine.yaml:4)"),
        ("scopes:\n  block:\n    modules:\n      a: [x]\n      a: [y]", 5,
         "'a' is given twice, first in line 4"),
        ("scopes:\n  leaves: [gamma]", 2, "expected a mapping"),
        ("scopes:\n  leaves:\n    weight: [w]\n    bias: [w]", 4,
         "'w' already means 'weight' (mine.yaml:3)"),
        ("operators:\n  kinds:\n    mine: {class: magic}", 3, "unknown class 'magic'"),
        ("operators:\n  kinds:\n    mine: {members: [x]}", 3, "'class' is missing"),
        ("operators:\n  kinds:\n    mine: {class: linear, layout: upside}", 3,
         "unknown layout 'upside'"),
        ("operators:\n  kinds:\n    a: {class: linear, members: [Foo]}\n    b: {class: linear, "
            "members: [foo]}", 4,
         "'foo' is already a member of 'a' (mine.yaml:3)"),
        ("operators:\n  kinds:\n    a: {class: linear, members: {x: y}}", 3,
         "expected a text, found a mapping"),
        ("operators: 3", 1, "expected a mapping (key: value), found '3'"),
        ("decompositions:\n  operators:\n    matmul: [[mul, smu]]", 3,
         "unknown operator kind 'smu'"),
        ("decompositions:\n  operators:\n    matmull: [[mul]]", 3, "did you mean 'matmul'?"),
        ("decompositions:\n  operators:\n    sigmoid: [[silu]]", 3, "cyclic decomposition: "),
        ("decompositions:\n  operators:\n    silu: [sigmoid, mul]", 3,
         "expected a list of names, found 'sigmoid'"),
        ("decompositions:\n  operators:\n    silu: [[]]", 3, "an empty list"),
        ("tolerances:\n  base_units: 32", 2, "expected a mapping"),
        ("tolerances:\n  base_units: {value: 32}", 2, "'source' is missing"),
        ("tolerances:\n  base_units: {value: many, source: x}", 2,
         "expected a number, 0 or more, found 'many'"),
        ("tolerances:\n  spread: {value: -1, source: x}", 2,
         "expected a number, 0 or more, found '-1'"),
        ("tolerances:\n  classes:\n    linear: {conditioning: 0.5, source: x}", 3,
         "1 or more, found 0.5"),
        ("tolerances:\n  classes:\n    linear: {growth: cubic, source: x}", 3,
         "unknown growth 'cubic'"),
        ("tolerances:\n  kinds:\n    subb: {conditioning: 2, source: x}", 3, "did you mean 'sub'?"),
        ("scopes:\n  layers: [unclosed", 2, "no valid YAML"),
        ("a: b\n\tc: d", 2, "no valid YAML"),
        ("- a\n- b", 1, "expected a mapping (key: value), found a list"),
    ],
)  # fmt: skip
def test_the_error_of_a_bad_rule_has_file_line_and_reason(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    file = write_rules(tmp_path, text)
    with pytest.raises(RuleError) as caught:
        load_rules([file])
    assert isinstance(caught.value, DumpError)
    assert caught.value.file == str(file)
    assert caught.value.line == line
    assert reason.replace("mine.yaml", str(file)) in caught.value.reason
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cannot be read"):
        load_rules([tmp_path / "nowhere.yaml"])
    with pytest.raises(RuleError, match="cannot be read"):
        load_rules([tmp_path])
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RuleError, match="UTF-8"):
        load_rules([binary])


def test_an_empty_file_adds_nothing(tmp_path: Path, rules: Rules) -> None:
    assert (
        load_rules([write_rules(tmp_path, "# nothing yet\n")]).count_rules() == rules.count_rules()
    )


def test_every_shipped_file_begins_with_a_description() -> None:
    for file in list_shipped_files():
        text = file.read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert "--rules" in text.split("\n\n")[0], file


def test_explain_names_the_rules_that_were_applied(rules: Rules) -> None:
    scope, parameter, _ = rules.explain_name("n.n.layers.0.attention.wq.weight")
    assert parameter.result == "layers.0.attention.q.weight"
    assert any(
        "scopes/" in line and "attention.wq -> attention.q" in line for line in parameter.rules
    )
    assert scope.reading == "scope"


def test_explain_of_an_operator_names_member_class_and_decompositions(rules: Rules) -> None:
    operator = rules.explain_name("NPU.npu_swiglu.3.forward")[2]
    assert operator.result == "swiglu"
    assert operator.rules[0].startswith("operators.yaml:")
    assert "class activation" in operator.notes
    assert "may be silu, mul" in operator.notes
    assert (
        rules.explain_name("Default/net-Net/norm-RMSNorm/SoftmaxBackward-op2")[2].result
        == "grad:softmax"
    )


def test_explain_shows_the_most_similar_rules(rules: Rules) -> None:
    scope, _, operator = rules.explain_name("net.wq_projj")
    assert scope.result == ""
    assert scope.rules == ()
    assert rules.explain_name("net.lm_heads")[0].closest[0].endswith("lm_head -> head")
    assert operator.notes == ("class other",)
    assert any(
        "layer_norm" in line for line in rules.explain_name("Functional.layernrm")[2].closest
    )


def test_a_number_that_a_rule_names_is_no_other_number(tmp_path: Path) -> None:
    """Names that differ only in numbers are read once for all numbers that no rule names."""
    text = "scopes:\n  model:\n    modules:\n      first_expert: [experts.0]\n"
    rules = load_rules([write_rules(tmp_path, text)])
    assert rules.resolve_scope("experts.0") == "first_expert"
    assert rules.resolve_scope("experts.7") == ""
    assert rules.resolve_scope("model.layers.0.self_attn") == "layers.0.attention"
    assert rules.resolve_scope("model.layers.7.self_attn") == "layers.7.attention"
