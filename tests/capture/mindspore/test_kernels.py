"""What an entry of kernels selects; the same was seen in runs, see test_config.py and
test_check.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff import Trace
from dumpdiff.capture.mindspore import Options, Target, build_configuration, check
from dumpdiff.capture.mindspore.kernels import (
    extract_regex,
    get_operator_type,
    list_kernel_names,
    parse_kernel,
)
from dumpdiff.model.errors import DumpError

NAMES = (
    "Default/network-WithLoss/fc-Dense/MatMul-op0",
    "Default/network-WithLoss/fc-Dense/MatMul-op10",
    "Gradients/Default/network-WithLoss/fc-Dense/Grad_MatMul/MatMul-op0",
    "Expand/_SiLU/Mul-op0",
    "net.layers.0.weight",
)


@pytest.mark.parametrize(
    ("entry", "selected"),
    [
        (NAMES[0], {0}),
        ("MatMul", {0, 1, 2}),
        ("matmul", {0, 1, 2}),
        ("mul", {0, 1, 2, 3}),
        ("Default/network-WithLoss/fc-Dense", set()),
        ("name-regex(.*MatMul-op0)", {0, 2}),
        ("name-regex( .*MatMul-op0 )", {0, 2}),
        ("name-regex(MatMul)", set()),
        (r"name-regex(.*-op\d)", set()),
        ("name-regex(net[.].*)", {4}),
        ("name-regex(.*MatMul-op[[:digit:]])", {0, 2}),
        ({"a": 1}, set()),
    ],
)
def test_selects(entry: object, selected: set[int]) -> None:
    taken = parse_kernel(entry)
    assert {number for number, name in enumerate(NAMES) if taken.selects(name)} == selected


def test_the_type_of_an_operator_is_its_last_part_without_the_number() -> None:
    assert [get_operator_type(name) for name in NAMES[2:]] == [
        "MatMul",
        "Mul",
        "net.layers.0.weight",
    ]


@given(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
def test_a_regex_of_names_selects_these_alone(names: list[str]) -> None:
    taken = parse_kernel(extract_regex(names))
    assert [name for name in NAMES if taken.selects(name)] == [
        name for name in NAMES if name in names
    ]


@given(st.text(alphabet="ab0./_-$+*?(){}|", min_size=1))
def test_a_regex_of_any_name_selects_it_and_holds_no_backslash(name: str) -> None:
    entry = extract_regex([name])
    assert "\\" not in entry
    assert parse_kernel(entry).selects(name)


@pytest.mark.parametrize("name", ["a[0]", "a^b", "a\\b"])
def test_a_name_that_cannot_be_written_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        extract_regex([name])


def unused(trace: Trace, *kernels: str) -> list[str]:
    """What is said of kernels, once the network is known from a dump of it."""
    config = build_configuration(Options(path="/tmp", kernels=kernels), Target("cpu"))
    return [
        violation.message
        for violation in check(config, Target("cpu"), names=list_kernel_names(trace))
    ]


def test_the_names_of_a_dump_are_those_of_the_runtime(trace: Callable[[str], Trace]) -> None:
    names = list_kernel_names(trace("ms_graph"))
    assert len(set(names)) == len(names)
    assert not any("#" in name for name in names)
    assert unused(trace("ms_graph"), *names[:3], "name-regex(.*[.]weight)", "matmul") == []


def test_an_absent_kernel_is_reported_with_close_names(
    trace: Callable[[str], Trace],
) -> None:
    name = next(
        name for name in list_kernel_names(trace("ms_graph")) if name.endswith("MatMul-op0")
    )
    (said,) = unused(trace("ms_graph"), name.replace("-op0", "-op9999"))
    assert f"of {name[:-4]!r} there are -op0" in said
    (said,) = unused(trace("ms_graph"), name.replace("MatMul", "MatMull"))
    assert f"the closest name is {name!r}" in said
    (said,) = unused(trace("ms_graph"), "name-regex(Default/.*Conv2D.*)")
    assert "there is no such operator" in said


def test_a_dump_that_does_not_tell_names_is_refused(trace: Callable[[str], Trace]) -> None:
    with pytest.raises(DumpError, match="with its graphs"):
        list_kernel_names(trace("pt_none"))
