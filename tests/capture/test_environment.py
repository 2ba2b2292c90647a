"""The variables of a run, and every shell that takes them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dumpdiff.capture.environment import (
    FRAMEWORKS,
    VARIABLES,
    build_environment,
    explain_variables,
    list_remarks,
)
from dumpdiff.capture.mindspore import Options, Target, build_configuration, format_configuration
from dumpdiff.capture.shells import SHELLS
from dumpdiff.model.errors import DumpError

COMMAND = f"{shlex.quote(sys.executable)} -c 'from dumpdiff.cli import run; run()'"
VALUES = st.dictionaries(
    st.sampled_from(["A", "B_2", "HCCL"]),
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12),
    min_size=1,
)


def write(folder: Path, path: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "dump.json"
    file.write_text(format_configuration(build_configuration(Options(path=path), Target("cpu"))))
    return file


def run_in_shell(shell: str, script: str, folder: Path) -> dict[str, str]:
    """The environment that a program sees after this script."""
    show = (
        f"{shlex.quote(sys.executable)} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    )
    run = subprocess.run(
        [shell, "-c", f"{script}\n{show}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("quoted", ['eval "$({} env dump.json)"', "eval $({} env dump.json)"])
def test_eval_in_bash(quoted: str, tmp_path: Path) -> None:
    file = write(tmp_path, "")
    seen = run_in_shell("bash", quoted.format(COMMAND), tmp_path)
    assert seen["MINDSPORE_DUMP_CONFIG"] == str(file)
    assert seen["MS_DIAGNOSTIC_DATA_PATH"] == str(tmp_path)
    assert seen["HCCL_DETERMINISTIC"] == "true"
    assert seen["MS_ASCEND_CHECK_OVERFLOW_MODE"] == "INFNAN_MODE"


def test_eval_in_bash_with_a_folder_that_needs_quotes(tmp_path: Path) -> None:
    file = write(tmp_path / "it's $HOME; `here`", "/data/dump")
    seen = run_in_shell("bash", f'eval "$({COMMAND} env dump.json)"', file.parent)
    assert seen["MINDSPORE_DUMP_CONFIG"] == str(file)
    assert "MS_DIAGNOSTIC_DATA_PATH" not in seen


@given(VALUES)
def test_every_value_survives_the_shell(values: dict[str, str]) -> None:
    words = shlex.split(SHELLS["bash"](values).replace(";\n", "\n"))
    assert words == [
        word for name, value in values.items() for word in ("export", f"{name}={value}")
    ]
    assert json.loads(SHELLS["json"](values)) == values


def test_fish_quotes_as_fish_does() -> None:
    assert SHELLS["fish"]({"A": "it's \\ $x"}) == "set -gx A 'it\\'s \\\\ $x';\n"


def test_docker_has_an_option_to_a_line_and_refuses_what_it_cannot_hold() -> None:
    assert SHELLS["docker"]({"A": "1", "B": "/x"}) == "--env A=1\n--env B=/x\n"
    with pytest.raises(DumpError, match="rename the folder"):
        SHELLS["docker"]({"A": "/my data"})


def test_slurm_has_one_option_and_refuses_what_it_cannot_hold() -> None:
    assert SHELLS["slurm"]({"A": "1", "B": ":4096:8"}) == "--export=ALL,A=1,B=:4096:8\n"
    with pytest.raises(DumpError, match="set it in the batch script"):
        SHELLS["slurm"]({"VLOG_v": "(10302,10302)"})


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("shell", ["bash", "fish", "json", "docker", "slurm"])
def test_every_shell_takes_what_a_run_needs(framework: str, shell: str) -> None:
    values = build_environment(framework)
    assert all(name in SHELLS[shell](values) for name in values)


def test_without_a_configuration_nothing_names_one() -> None:
    assert "MINDSPORE_DUMP_CONFIG" not in build_environment("mindspore")
    assert not any(name.startswith("M") for name in build_environment("pytorch"))


def test_what_is_not_always_wanted_is_set_only_if_asked_for() -> None:
    assert build_environment("mindspore", also=("MS_DEV_SAVE_GRAPHS",))["MS_DEV_SAVE_GRAPHS"] == "2"
    asked = {variable.name for variable in VARIABLES if variable.is_optional}
    assert not asked & build_environment("mindspore").keys()
    with pytest.raises(DumpError, match="unknown variable 'MS_DEV_SAVE_GRAPH'"):
        build_environment("mindspore", also=("MS_DEV_SAVE_GRAPH",))


def test_cann_is_given_the_same_configuration_if_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path, "/data/dump")
    assert build_environment("mindspore", file, also=("MS_ACL_DUMP_CFG_PATH",))[
        "MS_ACL_DUMP_CFG_PATH"
    ] == str(file)
    assert "MS_ACL_DUMP_CFG_PATH" not in build_environment("mindspore", file)


def test_the_seed_is_that_of_python() -> None:
    assert build_environment("pytorch", seed=7)["PYTHONHASHSEED"] == "7"


def test_explained_says_what_every_variable_of_the_framework_is_for() -> None:
    said = explain_variables("mindspore", build_environment("mindspore"))
    for variable in VARIABLES:
        assert (variable.purpose in said) == ("mindspore" in variable.frameworks)
    assert "MS_DEV_SAVE_GRAPHS (not set; --also MS_DEV_SAVE_GRAPHS sets it to 2)" in said


def test_a_folder_that_mindspore_would_refuse_is_not_named(tmp_path: Path) -> None:
    file = write(tmp_path / "v1.0", "")
    with pytest.raises(DumpError, match="write a path into the file"):
        build_environment("mindspore", file)


def test_a_configuration_that_is_no_json_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "dump.json").write_text("{,}")
    with pytest.raises(DumpError, match=r"dump[.]json: line 1, column 2"):
        build_environment("mindspore", tmp_path / "dump.json")


def test_a_place_that_the_user_has_set_stays_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "")
    monkeypatch.setenv("MS_DIAGNOSTIC_DATA_PATH", "/data/mine")
    values = build_environment("mindspore", file)
    assert values["MS_DIAGNOSTIC_DATA_PATH"] == "/data/mine"
    assert list_remarks(values) == [
        "MS_DIAGNOSTIC_DATA_PATH is set already and stays: the dump goes to /data/mine/debug_dump"
    ]


def test_a_dump_that_is_already_there_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "dump" / "rank_0").mkdir(parents=True)
    (remark,) = list_remarks(build_environment("mindspore", write(tmp_path, f"{tmp_path}/dump")))
    assert remark.startswith(f"warning: {tmp_path}/dump: already holds a dump (rank_0); the next")
