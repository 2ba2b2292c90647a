"""How most values of a kind are joined."""

from collections import Counter

from dumpdiff.sharding.assemblies import _choose_common
from dumpdiff.sharding.slices import Assembly

PLAIN, BLOCKS, OTHER_BLOCKS = Assembly(0), Assembly(0, (0, 2, 1, 3)), Assembly(0, (1, 0, 3, 2))


def test_one_layer_that_is_joined_otherwise_is_outvoted() -> None:
    assert _choose_common(Counter({BLOCKS: 3, OTHER_BLOCKS: 1})) == BLOCKS


def test_of_two_the_plain_one_is_right() -> None:
    assert _choose_common(Counter({BLOCKS: 1, PLAIN: 1})) == PLAIN


def test_routed_tokens_have_another_order_in_each_layer() -> None:
    assert _choose_common(Counter({BLOCKS: 1, OTHER_BLOCKS: 1})) is None
    assert _choose_common(Counter()) is None
