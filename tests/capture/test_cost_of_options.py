"""The cost of every option of msprobe's configuration, held against a real run with it.

The estimate is made from one dump of everything (level mix, risk level ALL). Tensors are known
within 10 %, files of tensors within 10 % and files of statistics within 25 %.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import FIXTURES

from dumpdiff import read
from dumpdiff.capture.cost import flag_recorded_tensors
from dumpdiff.capture.cost_from_dump import ExpectedCost, estimate_msprobe_cost
from dumpdiff.capture.msprobe import Options, build_configuration, format_configuration
from dumpdiff.capture.msprobe.fields import TASKS
from dumpdiff.model.errors import DumpError
from dumpdiff.model.trace import Trace

LINEARS = ("Functional.linear.0.forward", "Functional.linear.7.forward")
EVERYTHING, BF16_EVERYTHING = "risk-all", "bf16-risk-all"
ASKED: dict[str, dict[str, Any]] = {
    EVERYTHING: {"risk_level": "ALL"},
    "mix": {},
    "mix-tensor": {"task": "tensor"},
    "risk-core": {"risk_level": "CORE"},
    "L0": {"level": "L0"},
    "L0-tensor": {"level": "L0", "task": "tensor"},
    "L1": {"level": "L1"},
    "L1-tensor": {"level": "L1", "task": "tensor"},
    "list-of-calls": {"names": ("linear",)},
    "list-of-a-module": {"names": ("layers.1.self_attn",)},
    "list-of-a-module-tensor": {"names": ("layers.1.mlp",), "task": "tensor"},
    "list-of-modules-only": {"names": ("layers.1.self_attn",), "level": "L0"},
    "list-of-one-call": {"names": ("Functional.linear.3.forward",), "task": "tensor"},
    "scope-of-calls": {"scope": LINEARS, "level": "L1"},
    "scope-in-mix": {"scope": LINEARS},
    "scope-of-gradients": {
        "scope": ("Functional.linear.7.backward", "Functional.linear.0.backward"),
        "level": "L1",
    },
    "md5": {"summary_mode": "md5"},
    "xor": {"summary_mode": "xor"},
    "tensor-list": {"tensor_list": ("softmax",)},
    "forward": {"data_mode": ("forward",)},
    "backward": {"data_mode": ("backward",)},
    "input": {"data_mode": ("input",)},
    "output": {"data_mode": ("output",)},
    "async": {"async_dump": True},
    "steps": {"steps": ("0-1",)},
    BF16_EVERYTHING: {"risk_level": "ALL"},
    "bf16-tensor": {"task": "tensor"},
}


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``dumped("L0")``: the dump of the run with these options; all are run at once."""
    folder = tmp_path_factory.mktemp("msprobe")
    for name, asked in ASKED.items():
        (folder / name).mkdir()
        options = Options(path=str(folder / name / "dump"), **asked)
        text = format_configuration(build_configuration(options))
        (folder / name / "config.json").write_text(text)
        if name.startswith("bf16"):
            (folder / name / "bf16").touch()
    subprocess.run(
        [sys.executable, FIXTURES / "try_msprobe_configs.py", folder],
        check=True,
        capture_output=True,
    )
    return lambda name: folder / name / "dump"


def check_cost(expected: ExpectedCost, dump: Path, has_whole_tensors: bool) -> None:
    """Assert that tensors and bytes are those of a dump: of files of tensors to a tenth."""
    n_tensors = sum(
        int(flag_recorded_tensors(read(step)).sum()) for step in sorted(dump.glob("step*"))
    )
    n_bytes = sum(
        file.stat().st_size for file in dump.rglob("*") if file.suffix in (".json", ".pt", ".npy")
    )
    total = expected.step.multiply(expected.steps or 1)
    assert total.tensors == pytest.approx(n_tensors, rel=0.1)
    assert total.bytes == pytest.approx(n_bytes, rel=0.1 if has_whole_tensors else 0.25)


@pytest.mark.record
@pytest.mark.parametrize("name", ASKED)
def test_the_size_of_a_real_dump_is_known_before_the_run(
    name: str, dumped: Callable[[str], Path]
) -> None:
    dump = dumped(name)
    like = BF16_EVERYTHING if name.startswith("bf16") else EVERYTHING
    expected = estimate_msprobe_cost(
        Options("/data", **ASKED[name]), read(dumped(like)), "everything"
    )
    check_cost(expected, dump, ASKED[name].get("task") == "tensor")
    assert expected.notes == ()


@pytest.mark.record
def test_the_size_of_a_dump_in_pynative_mode_is_known_from_statistics(
    recorded: Callable[..., Path],
) -> None:
    """Files of tensors are npy there, which have a smaller header than those of PyTorch."""
    dumps = {task: recorded("mindspore_pynative", "--task", task) for task in TASKS}
    statistics = read(dumps["statistics"])
    for task, dump in dumps.items():
        options = Options("/data", framework="mindspore", task=task)
        expected = estimate_msprobe_cost(options, statistics, "statistics")
        check_cost(expected, dump, task == "tensor")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"names": ("Functional.linaer",)}, "list 'Functional.linaer' selects nothing in .*linear"),
        (
            {"scope": ("Functional.linear.99.forward", LINEARS[1]), "level": "L1"},
            "scope 'Functional.linear.99.forward' selects nothing in .*Functional.linear.9.forward",
        ),
        ({"tensor_list": ("sotfmax",)}, "tensor_list 'sotfmax' selects nothing in .*softmax"),
    ],
)
def test_what_selects_nothing_is_an_error_with_the_nearest_names(
    asked: dict[str, Any], message: str, trace: Callable[[str], Trace]
) -> None:
    with pytest.raises(DumpError, match=message):
        estimate_msprobe_cost(Options("/data", **asked), trace("demo_pytorch"), "demo")


def test_a_module_opens_everything_that_runs_in_it(trace: Callable[[str], Trace]) -> None:
    """In level mix, six times as much as the records that have its name."""
    like = trace("demo_pytorch")
    named = int(like.ops["name"].str.contains("layers.1.self_attn", regex=False).sum())
    expected = estimate_msprobe_cost(
        Options("/data", names=("layers.1.self_attn",), risk_level=""), like, "demo"
    )
    assert expected.step.tensors > 3 * named


def test_what_the_dump_does_not_hold_is_said(trace: Callable[[str], Trace]) -> None:
    """A list and a scope also record calls of low risk, which a dump of FOCUS lacks."""
    like = trace("demo_pytorch")
    for asked in ({"names": ("linear",)}, {"risk_level": "ALL"}):
        notes = estimate_msprobe_cost(Options("/data", **asked), like, "demo").notes
        assert notes == (
            "demo holds no calls of low risk (view, cat, ...), which this configuration records "
            "too: a dump with --risk-level ALL tells how many",
        )
