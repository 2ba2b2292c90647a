"""Rules inferred from a comparison: the text is a rule file and has the intended effect."""

from pathlib import Path

import pytest
from results import make_result

from dumpdiff.model.result import Equivalence
from dumpdiff.rulebook import Rules, load_rules
from dumpdiff.rulebook.inference import infer_rule_text

SHIPPED = load_rules([])


def infer_rules(
    tmp_path: Path, *learned: Equivalence, parameters: tuple[tuple[str, str], ...] = ()
) -> tuple[str, Rules]:
    """Return the inferred text, and the shipped rules with it."""
    text = infer_rule_text(make_result(learned=learned, parameters=parameters), SHIPPED)
    file = tmp_path / "inferred.yaml"
    file.write_text(text, encoding="utf-8")
    return text, load_rules([file])


class TestOperators:
    def test_an_unknown_spelling_becomes_a_member_of_the_known_kind(self, tmp_path: Path) -> None:
        text, rules = infer_rules(tmp_path, Equivalence(("FrobSwish",), ("Functional.silu",), 7))
        assert rules.resolve_kind("FrobSwish") == "silu"
        assert "silu: {members: [FrobSwish]}  # seen 7 times" in text

    def test_an_unknown_kind_is_inferred_on_either_side(self, tmp_path: Path) -> None:
        _, rules = infer_rules(tmp_path, Equivalence(("MatMul",), ("Torch.frobnicate",), 1))
        assert rules.resolve_kind("Torch.frobnicate") == "matmul"

    def test_two_unknown_spellings_become_one_kind(self, tmp_path: Path) -> None:
        text, rules = infer_rules(tmp_path, Equivalence(("FrobOne",), ("Torch.frob_two",), 3))
        assert rules.resolve_kind("FrobOne") == rules.resolve_kind("Torch.frob_two")
        assert "give it a class" in text

    def test_a_decomposition_is_added_to_those_known(self, tmp_path: Path) -> None:
        text, rules = infer_rules(
            tmp_path, Equivalence(("Exp", "Add", "Log"), ("Functional.silu",), 2)
        )
        assert rules.decompositions["silu"] == (
            *SHIPPED.decompositions["silu"],
            ("exp", "add", "log"),
        )
        assert "- [exp, add, log]  # seen 2 times" in text

    def test_the_one_may_be_on_the_target_side(self, tmp_path: Path) -> None:
        _, rules = infer_rules(tmp_path, Equivalence(("Gelu",), ("Torch.erf", "Tensor.__mul__"), 2))
        assert ("erf", "mul") in rules.decompositions["gelu"]

    def test_the_backward_record_of_a_call_is_its_gradient(self, tmp_path: Path) -> None:
        _, rules = infer_rules(
            tmp_path, Equivalence(("Mul", "ReduceSum"), ("Tensor.__mul__Backward",), 10)
        )
        assert rules.decompositions["grad:mul"] == (("mul", "sum"),)

    def test_a_part_that_no_rule_knows_becomes_a_kind(self, tmp_path: Path) -> None:
        _, rules = infer_rules(tmp_path, Equivalence(("Frob", "Mul"), ("Functional.silu",), 1))
        assert rules.has_kind("frob")
        assert ("frob", "mul") in rules.decompositions["silu"]

    @pytest.mark.parametrize(
        ("reason", "target", "reference"),
        [
            ("a row of the shipped rules", ("Sigmoid", "Mul"), ("Functional.silu",)),
            ("a kind that is made of the other", ("Square",), ("Tensor.pow",)),
            ("a row whose parts decompose", ("Sigmoid", "Mul", "Mul"), ("NPU.npu_swiglu",)),
            ("one kind", ("RsqrtGrad",), ("Torch.rsqrtBackward",)),
            ("several against several", ("Mul", "Add"), ("Tensor.__add__", "Tensor.__truediv__")),
            ("a call of a module", ("AddN",), ("Module.DecoderBackward",)),
            ("the record of weight gradients", ("MatMul",), ("parameters_gradBackward",)),
            ("layout operators beside", ("Reshape", "MatMul"), ("Functional.linear",)),
        ],
    )
    def test_nothing_is_inferred_from(
        self, tmp_path: Path, reason: str, target: tuple[str, ...], reference: tuple[str, ...]
    ) -> None:
        text, _ = infer_rules(tmp_path, Equivalence(target, reference, 9))
        assert "Nothing to suggest" in text, reason

    def test_no_cycle_is_inferred(self, tmp_path: Path) -> None:
        equal = (
            Equivalence(("Mul",), ("Tensor.__truediv__",), 4),
            Equivalence(("RealDiv",), ("Tensor.__mul__",), 2),
        )
        _, rules = infer_rules(tmp_path, *equal)
        assert rules.decompositions["div"] == (("mul",),)
        assert "mul" not in rules.decompositions


class TestScopes:
    @pytest.mark.parametrize(
        ("unknown_name", "known_name"),
        [
            ("net.segment.3.mixer.query.weight", "model.layers.3.self_attn.q_proj.weight"),
            ("net.layers.3.mixer.query.weight", "model.layers.3.self_attn.q_proj.weight"),
            ("net.layers.3.attention.wq.kernel", "model.layers.3.self_attn.q_proj.weight"),
            ("net.segment.3.mixer.query.kernel", "model.layers.3.self_attn.q_proj.weight"),
            (
                "net.segment.3.moe.parts.5.first.weight",
                "model.layers.3.mlp.experts.5.gate_proj.weight",
            ),
            ("net.lookup.weight", "model.embed_tokens.weight"),
            ("net.lookup.kernel", "model.embed_tokens.weight"),
        ],
    )
    @pytest.mark.parametrize("turned", [False, True])
    def test_two_names_of_one_scope_become_one(
        self, tmp_path: Path, unknown_name: str, known_name: str, turned: bool
    ) -> None:
        pair = (known_name, unknown_name) if turned else (unknown_name, known_name)
        _, rules = infer_rules(tmp_path, parameters=(pair,))
        expected_path = SHIPPED.resolve_parameter(known_name)
        assert expected_path != ""
        assert rules.resolve_parameter(unknown_name) == expected_path
        assert rules.resolve_parameter(known_name) == expected_path

    def test_layers_share_one_pattern_and_are_counted(self, tmp_path: Path) -> None:
        pairs = tuple(
            (f"net.segment.{n}.mixer.query.weight", f"model.layers.{n}.self_attn.q_proj.weight")
            for n in range(4)
        )
        text, rules = infer_rules(tmp_path, parameters=pairs)
        assert "attention.q: [mixer.query]  # seen in 4 parameters" in text
        assert (
            rules.resolve_parameter("net.segment.99.mixer.query.weight")
            == "layers.99.attention.q.weight"
        )

    def test_a_pattern_for_two_paths_gets_the_more_frequent_one(self, tmp_path: Path) -> None:
        pairs = (
            ("net.layers.0.odd.weight", "model.layers.0.self_attn.q_proj.weight"),
            ("net.layers.1.odd.weight", "model.layers.1.self_attn.q_proj.weight"),
            ("net.layers.2.odd.weight", "model.layers.2.self_attn.k_proj.weight"),
        )
        _, rules = infer_rules(tmp_path, parameters=pairs)
        assert rules.resolve_parameter("net.layers.0.odd.weight") == "layers.0.attention.q.weight"

    @pytest.mark.parametrize(
        "pair",
        [
            ("net.layers.0.attention.wq.weight", "model.layers.0.self_attn.q_proj.weight"),
            ("net.first.weight", "model.second.weight"),
            ("net.segment.2.query.weight", "model.layers.3.self_attn.q_proj.weight"),
            ("w", "model.layers.3.self_attn.q_proj.weight"),
            ("net.odd.0.q.weight", "visual.blocks.0.attn.q_proj.weight"),
        ],
        ids=["known", "neither is known", "another number", "no path", "a tower"],
    )
    def test_nothing_is_inferred_from_unclear_pairs(
        self, tmp_path: Path, pair: tuple[str, str]
    ) -> None:
        assert "Nothing to suggest" in infer_rules(tmp_path, parameters=(pair,))[0]


def test_names_that_yaml_would_read_otherwise_stay_names(tmp_path: Path) -> None:
    _, rules = infer_rules(
        tmp_path,
        Equivalence(("No",), ("Functional.silu",), 1),
        Equivalence(("A: b]#",), ("Torch.erf",), 1),
    )
    assert rules.resolve_kind("No") == "silu"
    assert rules.resolve_kind("A: b]#") == "erf"
