"""Equal dumps give equal results, whatever the order of Python's sets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("target", "reference"),
    [("demo_mindspore", "demo_pytorch"), ("ms_graph_bug_w1", "v6.0_api_stack")],
)
def test_the_result_does_not_depend_on_hash_randomization(
    dump: Callable[[str], Path], target: str, reference: str
) -> None:
    script = "import sys, dumpdiff; print(dumpdiff.align(*sys.argv[1:]).to_csv())"
    command = [sys.executable, "-c", script, str(dump(target)), str(dump(reference))]
    results = [
        subprocess.run(
            command, capture_output=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("0", "1", "2")
    ]
    assert results[0] == results[1] == results[2]
