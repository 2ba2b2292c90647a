"""What positional arguments are, and which of them give only a shape."""

import pytest

from dumpdiff.rulebook import RuleError, Rules, load_rules


@pytest.mark.parametrize(
    ("operator", "argument", "name"),
    [
        ("BatchNorm", "6", "epsilon"),
        ("BatchNorm", "7", "momentum"),
        ("Torch.batch_norm", "6", "momentum"),
        ("Torch.batch_norm", "7", "epsilon"),
        ("Functional.batch_norm", "7", "epsilon"),
        ("LayerNorm", "5", "epsilon"),
        ("Functional.layer_norm", "eps", "epsilon"),
        ("Functional.dropout", "p", "probability"),
        ("Dropout", "1", "keep_probability"),
        ("Functional.layer_norm", "9", ""),
        ("Aten.batch_norm", "6", ""),
        ("MyNorm", "2", ""),
    ],
)
def test_arguments_of_one_meaning_have_one_name(rules: Rules, operator, argument, name) -> None:
    assert rules.get_argument_name(operator, argument) == name


@pytest.mark.parametrize(
    ("operator", "positions"),
    [
        ("ZerosLike", {0}),
        ("OnesLike", {0}),
        ("Torch.zeros_like", {0}),
        ("Tensor.new_zeros", {0}),
        ("Shape", {0}),
        ("Tensor.expand_as", {1}),
        ("Tensor.view_as", {1}),
        ("FillV2", set()),
        ("Tensor.item", set()),
        ("Mul", set()),
    ],
)
def test_positions_of_which_only_the_shape_is_read(rules: Rules, operator, positions) -> None:
    assert rules.get_shape_positions(operator) == positions


def test_a_signature_needs_its_api(tmp_path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("arguments:\n  signatures:\n    my_norm: [x, eps]\n")
    with pytest.raises(RuleError, match=r"rules.yaml:3: 'my_norm' has no API"):
        load_rules([file])


def test_users_add_signatures(tmp_path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(
        "arguments:\n  signatures:\n    Functional.my_norm: [x, eps]\n"
        "  shape_only:\n    1: [my_broadcast]\n"
    )
    extended_rules = load_rules([file])
    assert extended_rules.get_argument_name("Functional.my_norm", "1") == "epsilon"
    assert extended_rules.get_shape_positions("Torch.my_broadcast") == {1}
