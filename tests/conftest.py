"""Shared by all tests: dumps, shipped (``dump``) or recorded now (``recorded``); ``--no-skip``."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import settings
from warm import Warm

from dumpdiff import Trace, read
from dumpdiff.graph import Flow, build_flow

# No test asserts how fast something is, but on a busy machine the default deadline of 200 ms would.
# The examples of property tests are the same in every run, so that one commit gets one answer;
# --hypothesis-profile=search draws others.
settings.register_profile("search", deadline=None)
settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile("same")

# Columns are read-only, as they always are from pandas 3 on.
pd.options.mode.copy_on_write = True

# What is printed does not depend on the locale of the person who runs the tests.
os.environ["DUMPDIFF_LANG"] = "en"

FIXTURES = Path(__file__).parent.parent / "fixtures"

#: Framework -> a process that has imported it, with all that msprobe imports when its debugger is
#: made. This saves eight of nine seconds of a recording with PyTorch, and two of five with
#: MindSpore, which reads the configuration of the dump only later.
WARM = {
    "pytorch": Warm("torch", "msprobe.pytorch", "megatron.core.pipeline_parallel.schedules"),
    "mindspore": Warm("mindspore"),
}


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``dump("ms_graph")``: the folder in fixtures/data/ms_graph.tar.xz, unpacked once."""

    @cache
    def unpack(name: str) -> Path:
        into = tmp_path_factory.mktemp("dumps")
        with tarfile.open(FIXTURES / "data" / f"{name}.tar.xz") as archive:
            archive.extractall(into, filter="data")
        return into / name

    return unpack


@pytest.fixture(scope="session")
def trace(dump: Callable[[str], Path]) -> Callable[[str], Trace]:
    """``trace("pt_none")``: the trace of a shipped dump, read once per session."""
    return cache(lambda name: read(dump(name)))


@pytest.fixture(scope="session")
def flow(trace: Callable[[str], Trace]) -> Callable[[str], Flow]:
    """``flow("pt_none")``: the dataflow of a shipped dump over its values."""
    return cache(lambda name: build_flow(trace(name)))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``recorded("mindspore", "--style", "jit")``: a dump of fixtures/record_mindspore.py.

    Keywords are environment variables of the recording: ``recorded("pytorch",
    ATEN_CPU_CAPABILITY="default")``. The framework runs in a process of its own, since a dump needs
    its environment set before the first import. Mark such tests ``@pytest.mark.record``.
    """

    @cache
    def record(framework: str, *options: str, **environment: str) -> Path:
        out = tmp_path_factory.mktemp("recorded") / framework
        return _run_fixture(f"record_{framework}.py", out, *options, **environment)

    return record


@pytest.fixture(scope="session")
def triage_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``triage_run("mindspore", "backward")``: a training with one of training_faults.FAULTS.

    Logs, settings, checkpoint, weights and gradients of the first steps, dump of step 1; made now
    by fixtures/train_mindspore.py or train_pytorch.py, once per session. Mark such tests
    ``@pytest.mark.record``.
    """

    @cache
    def train(framework: str, fault: str, steps: int) -> Path:
        out = tmp_path_factory.mktemp("triage") / f"{framework}_{fault}"
        return _run_fixture(f"train_{framework}.py", out, "--fault", fault, "--steps", str(steps))

    def train_once(framework: str, fault: str = "none", steps: int = 4) -> Path:
        return train(framework, fault, steps)  # all arguments by position: one key of the cache

    return train_once


def _run_fixture(script: str, out: Path, *options: str, **environment: str) -> Path:
    """Run a script of fixtures/ that fills ``out``, and return ``out``."""
    if environment:  # it may have to be there when a framework is imported
        command = [sys.executable, str(FIXTURES / script), str(out), *options]
        merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        run = subprocess.run(
            command, **merged, text=True, check=False, env=os.environ | environment
        )
        code, output = run.returncode, run.stdout
    else:
        framework = script.removesuffix(".py").split("_")[1]
        code, output = WARM[framework].run(FIXTURES / script, str(out), *options)
    assert code == 0, f"{script} {' '.join(options)} failed:\n{output}"
    return out


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skip",
        action="store_true",
        help="a skipped test fails the run: some part is not installed",
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        session.config.getoption("--no-skip")
        and reporter is not None
        and reporter.stats.get("skipped")
    ):
        reporter.write_line("\nskipped tests are failures here (--no-skip)", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
