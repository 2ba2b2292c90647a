"""Configurations drawn at random are judged as the real parser does.

MindSpore's parser is part of its runtime and reads a configuration when the first graph is
compiled. The cheapest way to ask it is one process that has imported the framework and a fork for
each configuration, in which a network of four operators runs two steps: 0.7 s of CPU each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dumpdiff.capture.mindspore import check_file

from .cases import CPU, NAMES, C
from .conftest import Outcome
from .generated import Generated, generate

KERNELS = f"{C}.kernels"


def judge(item: Generated, folder: Path) -> str:
    """What check says of the whole dump: refused, nothing or something."""
    file = item.write(folder)
    violations = check_file(file, CPU, names=NAMES)
    if any(violation.severity == "error" for violation in violations):
        return "refused"
    empty_fields = [
        violation.field for violation in violations if violation.severity == "writes nothing"
    ]
    if any(field != KERNELS for field in empty_fields):
        return "nothing"
    entries = {json.dumps(entry) for entry in item.list_entries()}
    return "nothing" if entries and len(empty_fields) >= len(entries) else "something"


def observe(item: Generated, outcome: Outcome) -> str:
    """What MindSpore did: refused, nothing or something.

    Parameters that nobody listed are nothing: they are written with every mode of debugging.
    """
    if outcome.refused:
        return "refused"
    files = [
        file
        for file in outcome.files
        if item.list_entries() or not file.name.startswith("Parameter.")
    ]
    return "something" if files else "nothing"


@pytest.mark.record
def test_two_hundred_configurations_are_judged_as_mindspore_does(
    tried: Callable[[str], Outcome], tmp_path: Path
) -> None:
    differences = []
    for item in generate():
        judged, observed = judge(item, tmp_path), observe(item, tried(item.name))
        if judged != observed:
            differences.append((item.name, item.changes, judged, observed))
    assert differences == []


def test_the_drawn_configurations_are_of_all_three_kinds(tmp_path: Path) -> None:
    judged = [judge(item, tmp_path) for item in generate()]
    counts = {kind: judged.count(kind) for kind in ("refused", "nothing", "something")}
    assert sum(counts.values()) == 200
    assert min(counts.values()) >= 20
