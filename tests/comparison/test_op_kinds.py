"""Kinds of ops as numbers."""

from dumpdiff.comparison.op_kinds import OpKinds

KINDS = OpKinds.from_names(("matmul", "grad:add", "add", "matmul"))


def test_every_different_kind_is_a_word():
    assert KINDS.words == ("matmul", "grad:add", "add")
    assert [KINDS.words[code] for code in KINDS.codes] == ["matmul", "grad:add", "add", "matmul"]


def test_a_kind_is_tested_and_measured_for_every_op():
    assert KINDS.flag(lambda kind: kind == "matmul").tolist() == [True, False, False, True]
    assert KINDS.measure(len).tolist() == [6, 8, 3, 6]


def test_a_gradient_counts_as_its_operator():
    assert KINDS.flag_operators({"add"}).tolist() == [False, True, True, False]


def test_ops_are_marked_as_gradients_once():
    marked = KINDS.name_gradients(KINDS.codes < 2)
    words = [marked.words[code] for code in marked.codes]
    assert words == ["grad:matmul", "grad:add", "add", "grad:matmul"]


def test_no_ops_have_no_kinds():
    empty = OpKinds.from_names(())
    assert empty.flag(bool).tolist() == []
