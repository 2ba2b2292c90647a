"""Configurations that are written: sound for every backend and version, and obeyed by MindSpore
2.10 on CPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from dumpdiff import read
from dumpdiff.capture.cost_from_dump import estimate_mindspore_cost
from dumpdiff.capture.mindspore import (
    BACKENDS,
    Options,
    Target,
    Version,
    build_configuration,
    check,
    format_configuration,
)

from .asked import ASKED, Asked
from .conftest import Outcome

VERSIONS = [Version(1, minor) for minor in (3, 5, 6, 8, 10)] + [
    Version(2, minor) for minor in range(11)
]
TARGETS = [Target(backend, version) for backend in BACKENDS for version in VERSIONS]
SUPPORTED = [
    target for target in TARGETS if target.backend != "ascend-ge" or target.version < (2, 6)
]


@pytest.mark.parametrize("target", SUPPORTED, ids=str)
def test_what_is_written_holds_for_every_backend_and_version(target: Target) -> None:
    for saved_data in ("tensor", "statistic", "full"):
        if saved_data == "tensor" or (target.backend != "cpu" and target.version >= (1, 6)):
            options = Options(path="/data/dump", saved_data=saved_data)
            assert check(build_configuration(options, target), target, run_is_local=False) == ()


def test_text_is_the_configuration_one_field_to_a_line() -> None:
    config = build_configuration(Options(path="/data/dump"), Target())
    text = format_configuration(config)
    assert json.loads(text) == config
    assert '    "kernels": [],\n' in text


def test_statistics_are_those_that_dumps_are_aligned_by() -> None:
    config = build_configuration(Options(path="/data/dump", saved_data="statistic"), Target())
    assert config["common_dump_settings"]["statistic_category"] == ["max", "min", "avg", "l2norm"]


@pytest.mark.parametrize(
    "target", [Target("ascend-ge", Version(2, 5)), Target("ascend", Version(2, 2))], ids=str
)
def test_an_asynchronous_dump_writes_npy_and_has_no_section_of_the_synchronous(
    target: Target,
) -> None:
    config = build_configuration(Options(path="/data/dump"), target)
    assert config["common_dump_settings"]["file_format"] == "npy"
    assert list(config) == ["common_dump_settings"]


def test_what_the_kind_of_dump_does_not_know_is_not_dropped_but_told() -> None:
    target = Target("ascend", Version(2, 2))
    config = build_configuration(Options(path="/data/dump", sample_num=9), target)
    assert {violation.rule for violation in check(config, target, run_is_local=False)} == {
        "field-version"
    }


@pytest.mark.record
@pytest.mark.parametrize("asked", [pytest.param(asked, id=asked.name) for asked in ASKED])
def test_mindspore_takes_it_and_the_dump_holds_what_was_asked_for(
    asked: Asked, tried: Callable[[str], Outcome]
) -> None:
    outcome = tried(asked.name)
    assert not outcome.refused, outcome.said
    assert asked.holds(outcome.files) == asked


@pytest.mark.record
@pytest.mark.parametrize("asked", [pytest.param(asked, id=asked.name) for asked in ASKED])
def test_the_size_of_the_dump_is_known_before_the_run(
    asked: Asked, tried: Callable[[str], Outcome]
) -> None:
    """From a dump of everything: files of npy are known to the byte."""
    everything = tried("asked-first").folder
    config = build_configuration(asked.options, Target("cpu"))
    expected = estimate_mindspore_cost(config, read(everything), str(everything))
    outcome = tried(asked.name)
    total = expected.step.multiply(len(asked.steps))
    assert total.tensors == len(outcome.files)
    assert total.bytes == sum((outcome.folder / file).stat().st_size for file in outcome.files)
    assert expected.notes == ()
