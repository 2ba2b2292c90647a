"""What every test shares: real dumps, shipped (``dump``) or recorded on the spot (``recorded``); ``--no-skip``."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from warm import Warm

from dumpdiff import Trace, read
from dumpdiff.graph import Flow, build_flow

# No test asserts how fast something is; on a busy machine the default deadline of 200 ms would. One
# commit gets one answer: the examples of property tests are the same each time, unless
# --hypothesis-profile=search asks for others.
settings.register_profile("search", deadline=None)
settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile("same")

FIXTURES = Path(__file__).parent.parent / "fixtures"

#: Framework -> a process that has imported it, with all that msprobe imports when its debugger is
#: made: eight of the nine seconds of a recording with PyTorch, two of five with MindSpore, which
#: looks for a dump's configuration later.
WARM = {
    "pytorch": Warm("torch", "msprobe.pytorch", "megatron.core.pipeline_parallel.schedules"),
    "mindspore": Warm("mindspore"),
}


@pytest.fixture(scope="session")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``dump("ms_graph")``: the folder that fixtures/data/ms_graph.tar.xz holds, unpacked once per session."""

    @cache
    def unpacked(name: str) -> Path:
        into = tmp_path_factory.mktemp("dumps")
        with tarfile.open(FIXTURES / "data" / f"{name}.tar.xz") as archive:
            archive.extractall(into, filter="data")
        return into / name

    return unpacked


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
    """``recorded("mindspore", "--style", "jit")``: a dump made now by fixtures/record_mindspore.py, once per session.

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
    """``triage_run("mindspore", "backward")``: the folder of a short training with a fault of fixtures/training.py.

    Logs, settings, checkpoint, weights and gradients of the first steps, dump of step 1; made now
    by fixtures/train_mindspore.py or train_pytorch.py, once per session. Mark such tests
    ``@pytest.mark.record``.
    """

    @cache
    def train(framework: str, fault: str, steps: int) -> Path:
        out = tmp_path_factory.mktemp("triage") / f"{framework}_{fault}"
        return _run_fixture(f"train_{framework}.py", out, "--fault", fault, "--steps", str(steps))

    return lambda framework, fault="none", steps=4: train(
        framework, fault, steps
    )  # one key, however it is asked for


def _run_fixture(script: str, out: Path, *options: str, **environment: str) -> Path:
    """``out``, after a script of fixtures/ has filled it."""
    if environment:  # it may have to be there when a framework is imported
        command = [sys.executable, str(FIXTURES / script), str(out), *options]
        merged = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        run = subprocess.run(
            command, **merged, text=True, check=False, env=os.environ | environment
        )
        code, said = run.returncode, run.stdout
    else:
        framework = script.removesuffix(".py").split("_")[1]
        code, said = WARM[framework].run(FIXTURES / script, str(out), *options)
    assert code == 0, f"{script} {' '.join(options)} failed:\n{said}"
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
