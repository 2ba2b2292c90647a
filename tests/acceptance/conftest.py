"""Shared by the acceptance tests: one comparison per pair, and dumps in other forms."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from dumpdiff import align, read
from dumpdiff.model.result import Result
from dumpdiff.optimizers import inputs as optimizer_inputs

from . import msprobe_form

FIXTURES = Path(__file__).parents[2] / "fixtures"
sys.path.insert(0, str(FIXTURES))

Compared = Callable[[Path, Path], Result]


@pytest.fixture(scope="session")
def compared() -> Compared:
    """``compared(target, reference)``: the result without options, computed once per pair."""
    return cache(align)


@pytest.fixture(scope="session")
def shared_updates() -> Iterator[None]:
    """Analyze the updates of each recorded run once: the sound run is a side of most pairs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer_inputs, "read_run", cache(optimizer_inputs.read_run))
        yield


@pytest.fixture(scope="session")
def statistic_csv(dump, tmp_path_factory) -> Callable[..., Path]:
    """``statistic_csv("ms_graph")``: the MindSpore dump as 6-digit statistics and graph, no npy."""

    @cache
    def convert(name: str, categories: str = "max,min,l2norm") -> Path:
        out = tmp_path_factory.mktemp("statistic_csv") / name
        command = [
            sys.executable,
            FIXTURES / "make_statistic_csv.py",
            dump(name),
            out,
            "--categories",
            categories,
        ]
        subprocess.run(command, check=True, capture_output=True)
        return out

    return convert


@pytest.fixture(scope="session")
def without_graph(dump, tmp_path_factory) -> Callable[[str], Path]:
    """``without_graph("ms_graph")``: the MindSpore dump with only its npy files."""

    @cache
    def copy_without_graph(name: str) -> Path:
        out = tmp_path_factory.mktemp("without_graph") / name
        shutil.copytree(dump(name), out, ignore=shutil.ignore_patterns("graphs", "execution_order"))
        return out

    return copy_without_graph


@pytest.fixture(scope="session")
def as_msprobe(dump, tmp_path_factory) -> Callable[[str], Path]:
    """``as_msprobe("v6.0_api_stack")``: a ptdbg dump's statistics in the format of msprobe."""

    @cache
    def write_as_msprobe(name: str) -> Path:
        out = tmp_path_factory.mktemp("as_msprobe")
        msprobe_form.write_trace(read(dump(name)), out)
        return out

    return write_as_msprobe
