"""What is advised can be done: every command line is one that the program takes, and says more of what was found."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click
import numpy as np
import pytest
from batches.test_packing_settings import SCRIPT, YAML
from batches.written import token_files
from click.testing import CliRunner
from optimizers.saved import train
from traces import find_dependents, find_tensors_like, locate_divergence, scale_tensors
from training_logs.log_lines import format_megatron_log, format_mindformers_log

from dumpdiff import api
from dumpdiff.cli import main
from dumpdiff.diagnosis.advice import Advice, advise
from dumpdiff.diagnosis.case import Case, Run
from dumpdiff.diagnosis.decision import Decision
from dumpdiff.diagnosis.evidence import Evidence
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.diagnosis.places import Cause, Place
from dumpdiff.model.stage import Stage
from dumpdiff.model.trace import Trace

LOSS = np.linspace(8.0, 5.0, 40)
CAUSES: tuple[Cause, ...] = get_args(Cause)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, dump: Callable[[str], Path]) -> TriageResult:
    """Two runs of which there is everything, in folders whose names a shell would take apart."""
    folder = tmp_path_factory.mktemp("a run of 'mine'")
    token_files(folder / "ours")
    token_files(folder / "theirs", seed=2)
    (folder / "run.yaml").write_text(YAML.replace("seed: 77", "seed: 78"))
    (folder / "run.sh").write_text(SCRIPT)
    (folder / "run.log").write_text(format_mindformers_log(np.where(np.arange(40) < 20, LOSS, 0.9 * LOSS)))
    (folder / "reference.log").write_text(format_megatron_log(LOSS))
    (folder / "rules.yaml").write_text("{}\n")
    steps = [train(folder / side, rate=rate) for side, rate in (("ms", 0.1), ("pt", 0.2))]
    runs = (
        Run(
            settings=str(folder / settings), data=str(folder / data), log=str(folder / log),
            norms=str(of / "gradients_1.npz"), weights=str(of / f"weights_{step}.npz"), steps=str(of),
            dump=str(dump(name)), version=version,
        )
        for settings, data, log, of, step, name, version in (
            ("run.yaml", "ours", "run.log", steps[0], 0, "ms_mf_attn_scale", "1.7"),
            ("run.sh", "theirs", "reference.log", steps[1], 1, "pt_none", "0.12"),
        )
    )  # fmt: skip
    return api.triage(Case(*runs, rules=(str(folder / "rules.yaml"),), min_steps=40))


@pytest.fixture(scope="module")
def several(trace: Callable[[str], Trace]) -> Evidence:
    """Dumps of runs with another weight, and with other tables of rotary angles after it."""
    whole = trace("v6.0_api_stack_summary")
    readers = (
        "Functional.linear.0.forward",
        "Tensor.__mul__.2.forward",
        "Tensor.__mul__.3.forward",
    )
    rows = {
        row
        for reader in readers
        for row in (*find_tensors_like(whole, reader, "input.1"), *find_dependents(whole, reader))
    }
    found = locate_divergence(scale_tensors(whole, rows, 1.1), whole)
    assert [finding.kind for finding in found.findings] == ["parameter", "constant", "constant"]
    return Evidence(dumps=found)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands write what they write."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def because_of(
    cause: Cause | None, candidates: tuple[Place, ...] = (), symptom: str = "unknown"
) -> Decision:
    return Decision("differ", symptom, cause, candidates, "")  # type: ignore[arg-type]


def advised(case: Case, evidence: Evidence) -> Iterator[Advice]:
    """What is advised for every conclusion that there can be."""
    for cause in CAUSES:
        for symptom in ("first loss", "gradients"):
            yield from advise(case, evidence, because_of(cause, symptom=symptom))
    yield from advise(case, evidence, because_of(None, get_args(Place)))
    for verdict in ("agree", "inconclusive"):
        yield from advise(case, evidence, replace(because_of(None), verdict=verdict))


def whole(evidence: Evidence) -> Evidence:
    """The same, found on whole tensors."""
    assert evidence.dumps is not None
    return replace(
        evidence, dumps=replace(evidence.dumps, pairs=evidence.dumps.pairs.assign(relative_l2=0.1))
    )


def command_lines(*told: Advice) -> list[list[str]]:
    """The arguments of every call of dumpdiff, in order."""
    lines = (line for one in told for line in one.commands)
    calls = (re.sub(r'^eval "\$\((.*)\)"', r"\1", line) for line in lines)
    split = [shlex.split(call, comments=True) for call in calls]
    assert all(words[0] == "dumpdiff" for words in split)
    return [words[1:] for words in split]


def parsed(arguments: list[str]) -> str:
    """The command that would run; raises click's error where it does not take the arguments."""
    command: click.Command = main
    name, words = "", list(arguments)
    while isinstance(command, click.Group):
        context = click.Context(command)
        found = command.get_command(context, words[0])
        if found is None and command is not main:  # the first command of a group needs no name
            words.insert(0, command.list_commands(context)[0])
            continue
        assert found is not None, f"there is no command {words[0]}"
        name, command = words.pop(0), found
    with suppress(click.exceptions.Exit):  # --help
        command.make_context(name, words)
    return name


def test_every_advised_command_is_taken(full: TriageResult, several: Evidence, here: Path) -> None:
    cases = (
        (full.case, full.evidence),
        (full.case, several),
        (full.case, whole(several)),
        (Case(), Evidence()),
    )
    calls = command_lines(*(one for given in cases for one in advised(*given)))
    assert {parsed(arguments) for arguments in calls} >= {
        "settings", "data", "compare", "convert", "align", "narrow", "explain", "logs", "optimizer", "mindspore",
        "msprobe", "env", "snippet",
    }  # fmt: skip


def test_the_check_of_commands_sees_a_wrong_one() -> None:
    with pytest.raises(click.UsageError, match="No such option"):
        parsed(["data", "a", "b", "--sequence-length", "8"])
    with pytest.raises(click.UsageError, match="Missing parameter"):
        parsed(["align", "a"])


@pytest.mark.parametrize("cause", ["settings", "data", "weights", "schedule", "optimizer"])
def test_what_is_advised_shows_what_the_stage_found(
    full: TriageResult, here: Path, cause: Cause
) -> None:
    stage = full.evidence.find_stage("logs" if cause == "schedule" else cause)
    assert stage is not None
    assert stage.verdict == "differ"
    shown = command_lines(*advise(full.case, full.evidence, because_of(cause)))[0]
    result = CliRunner().invoke(main, shown)
    assert result.exit_code == 1, result.output
    headline = stage.headline
    assert headline in result.stdout.partition("\n")[0]


def test_token_files_are_cut_as_the_settings_say(full: TriageResult) -> None:
    (call,) = command_lines(*advise(full.case, full.evidence, because_of("data")))
    assert shlex.join(call[3:]) == (
        "--seq-length 64 --global-batch-size 8 --micro-batch-size 2 --data-parallel 4 --seed 78:77 --split 1.0,0.0,0.0 "
        "--samples 800 --loader mindformers:megatron -v"
    )


def test_a_dump_that_is_advised_can_be_configured_and_is_of_that_step(
    here: Path, full: TriageResult
) -> None:
    told = (
        advise(Case(), Evidence(), because_of("forward")),
        advise(full.case, full.evidence, because_of("long run")),
    )
    for some, step in zip(told, (0, 20), strict=True):
        for arguments in command_lines(*some):
            if arguments[0] != "logs":
                result = CliRunner().invoke(main, arguments)
                assert result.exit_code == 0, result.output
        assert f'"iteration": "{step}"' in (here / "dump.json").read_text()
        assert re.search(rf'"step": \[\s*{step}\s*\]', (here / "config.json").read_text())


def test_statistics_are_narrowed_down(full: TriageResult, here: Path) -> None:
    dumps = full.evidence.dumps
    assert dumps is not None
    unexplained = replace(
        dumps, findings=tuple(replace(finding, causes=()) for finding in dumps.findings)
    )
    (one,) = advise(full.case, replace(full.evidence, dumps=unexplained), because_of("forward"))
    assert (
        one.why
        == "statistics say where, whole tensors say why; what to dump next around finding 1:"
    )
    assert [CliRunner().invoke(main, call).exit_code for call in command_lines(one)] == [1, 0]
    assert (here / "next").is_dir()


def test_the_first_finding_of_the_place_is_named_and_the_others_are_counted(
    several: Evidence,
) -> None:
    (one,) = advise(Case(), several, because_of("forward"))
    assert "around finding 2 (the first of 2 there)" in one.why
    assert one.commands[1] == "dumpdiff narrow result.json --finding 2 -o next"


def test_what_dumps_show_of_weights_is_advised_to_be_looked_at(several: Evidence) -> None:
    told = [one.why for one in advise(Case(), several, because_of("weights"))]
    assert told[0].startswith("compare the checkpoints: give weights: of both runs")
    assert told[1:] == ["look at finding 1:"]


def test_where_there_are_whole_tensors_what_was_tried_is_shown(several: Evidence) -> None:
    (one,) = advise(Case(), whole(several), because_of("forward"))
    assert one.why.startswith("no hypothesis explains finding 2")
    assert one.commands[1] == "dumpdiff explain result.json --finding 2"


@pytest.mark.parametrize("place", ["data", "weights", "forward", "backward", "optimizer"])
def test_what_was_given_and_cannot_be_read_is_not_asked_for_again(place: Place) -> None:
    evidence = Evidence(stages=(Stage(place, "inconclusive", "a.bin: cut off"),))
    told = advise(Case(), evidence, because_of(place))
    assert any(
        one.why.endswith("could not be used; put it right, and triage again: a.bin: cut off")
        for one in told
    )
    assert not any("give " in one.why for one in told)
