"""msprobe's config.json and the lines for a script: what may be asked for of which version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dumpdiff.capture.msprobe import (
    SCRIPTS,
    Options,
    build_configuration,
    build_script_lines,
    format_configuration,
)
from dumpdiff.capture.msprobe.fields import FIELDS
from dumpdiff.model.errors import DumpError

FULL = ("Module.model.norm.LayerNorm.forward.0", "Functional.linear.3.forward")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"path": "/data/my dump"},
            "dump_path '/data/my dump' may have only letters, digits and _ . : / -",
        ),
        ({"steps": ("5-",)}, "step '5-': expected a number such as 0, or a range such as 5-8"),
        ({"steps": ("8-5",)}, "step '8-5': expected a number"),
        ({"steps": ("0,1",)}, "step '0,1': expected a number"),
        (
            {"steps": ("9999999",)},
            "step '9999999': expected a number such as 0, or a range such as 5-8, up to 1000000",
        ),
        ({"ranks": ("all",)}, "rank 'all': expected a number"),
        (
            {"tensor_list": ("x",), "version": (1, 3)},
            "tensor_list exists since 8.1; older versions ignore it",
        ),
        (
            {"tensor_list": ("x",), "task": "tensor"},
            "tensor_list needs task statistics and level L0, L1, mix",
        ),
        (
            {"tensor_list": ("x",), "level": "L2", "names": ("x",)},
            "tensor_list needs task statistics and level",
        ),
        ({"precision": "high", "version": (8, 1)}, "precision exists since 8.3"),
        ({"risk_level": "ALL", "version": (8, 3, 3)}, "risk_level exists since 26.0"),
        ({"risk_level": "ALL", "framework": "mindspore"}, "risk_level has no effect in mindspore"),
        ({"level": "L2"}, "level L2 of PyTorch needs list"),
        ({"async_dump": True, "task": "tensor"}, "async_dump with task tensor needs list"),
        ({"async_dump": True, "version": (1, 2)}, "async_dump exists since 1.3"),
        (
            {"async_dump": True, "summary_mode": "md5"},
            "summary_mode md5 cannot be combined with async_dump",
        ),
        ({"summary_mode": "xor", "task": "tensor"}, "summary_mode xor needs task statistics"),
        ({"summary_mode": "xor", "version": (26, 0)}, "summary_mode xor exists since 26.2"),
        ({"summary_mode": "xor", "framework": "mindspore"}, "has no effect in mindspore"),
        (
            {"level": "L2", "framework": "mindspore", "scope": FULL},
            "level L2 takes list, not scope",
        ),
        ({"scope": FULL[:1]}, "scope takes two names, the first and the last call; 1 given"),
        (
            {"scope": ("Functional.linear", FULL[1])},
            "scope 'Functional.linear' is not a full name of level mix, such as",
        ),
        (
            {"scope": FULL, "level": "L0"},
            "scope 'Functional.linear.3.forward' is not a full name of level L0",
        ),
        (
            {"scope": FULL, "level": "L1"},
            "scope 'Module.model.norm.LayerNorm.forward.0' is not a full name of level L1",
        ),
        ({"data_mode": ("all", "forward")}, "data_mode all cannot be combined with another mode"),
        ({"summary_mode": "md5", "task": "tensor"}, "summary_mode md5 needs task statistics"),
    ],
)
def test_options_that_msprobe_would_refuse_or_ignore_are_reported(
    options: dict[str, object], reason: str
) -> None:
    with pytest.raises(DumpError) as told:
        build_configuration(Options(**{"path": "/data/dump", **options}))
    assert reason in str(told.value)
    assert str(told.value).startswith("msprobe ")


def test_every_field_that_is_written_is_in_the_table() -> None:
    names = {field.name for field in FIELDS}
    everything = Options("/d", tensor_list=("x",), precision="high", risk_level="ALL")
    config = build_configuration(everything)
    assert set(config) - {"statistics"} | set(config["statistics"]) <= names


def test_steps_and_ranks_are_numbers_where_they_can_be() -> None:
    config = build_configuration(Options("/d", steps=("0", "5-8"), ranks=("3",)))
    assert (config["step"], config["rank"]) == ([0, "5-8"], [3])


_PARSE = """
import json, sys
from msprobe.core.dump.common_config import CommonConfig
from msprobe.{framework}.dump.{module}_config import parse_task_config
content = json.load(open(sys.argv[1]))
section = parse_task_config(CommonConfig(content).task, content)
print(section.list, section.tensor_list, CommonConfig(content).step)
"""


@pytest.mark.parametrize(("framework", "module"), [("pytorch", "pt"), ("mindspore", "ms")])
def test_msprobe_reads_what_is_written(framework: str, module: str, tmp_path: Path) -> None:
    options = Options(
        "/data/dump", framework, names=("a",), tensor_list=("b",), steps=("5-6",), precision="high"
    )
    (tmp_path / "config.json").write_text(format_configuration(build_configuration(options)))
    script = _PARSE.format(framework=framework, module=module)
    run = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "config.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "['a'] ['b'] [5, 6]"


@pytest.mark.parametrize(
    ("script", "framework"),
    [(name, framework) for name, (those, _) in SCRIPTS.items() for framework in those],
)
def test_the_lines_are_python_and_name_the_configuration(script: str, framework: str) -> None:
    text = build_script_lines("/data/config.json", framework, script, (26, 2))
    compile(text, "lines", "exec")
    assert "config_path='/data/config.json'" in text
    assert f"from msprobe.{framework} import" in text


@pytest.mark.parametrize(
    ("script", "framework", "version", "reason"),
    [
        ("megatron", "mindspore", (26, 2), "--script megatron is for pytorch, not mindspore"),
        (
            "mindformers",
            "mindspore",
            (1, 2),
            "MsprobeStep needs msprobe 1.3 or later",
        ),
    ],
)
def test_a_script_that_has_no_such_hook_is_refused(
    script: str, framework: str, version, reason: str
) -> None:
    with pytest.raises(DumpError, match=reason):
        build_script_lines("/c.json", framework, script, version)
