"""Every advised command line is accepted by the program, and shows more of what was found."""

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
from batches.input_files import write_token_files
from batches.test_packing_settings import SCRIPT, YAML
from click.testing import CliRunner
from optimizers.sgd_run import save_sgd_run
from traces import find_dependents, find_tensors_like, locate_divergence, scale_tensors
from training_logs.log_lines import format_megatron_log, format_mindformers_log

import dumpdiff
from dumpdiff.cli import main
from dumpdiff.diagnosis.advice import Advice, advise
from dumpdiff.diagnosis.case import Case, Run
from dumpdiff.diagnosis.decision import Decision
from dumpdiff.diagnosis.dump_evidence import summarize_dumps
from dumpdiff.diagnosis.evidence import Evidence
from dumpdiff.diagnosis.likelihoods import PLACES, Place
from dumpdiff.diagnosis.outcome import TriageResult
from dumpdiff.diagnosis.places import Cause
from dumpdiff.model.stage import Stage
from dumpdiff.model.trace import Trace

LOSS = np.linspace(8.0, 5.0, 40)
CAUSES: tuple[Cause, ...] = get_args(Cause)


@pytest.fixture(scope="module")
def triage_result(
    tmp_path_factory: pytest.TempPathFactory, dump: Callable[[str], Path]
) -> TriageResult:
    """Triage two runs with every input, in folders whose names need quotes in a shell."""
    folder = tmp_path_factory.mktemp("a run of 'mine'")
    write_token_files(folder / "ours")
    write_token_files(folder / "theirs", seed=2)
    (folder / "run.yaml").write_text(YAML.replace("seed: 77", "seed: 78"))
    (folder / "run.sh").write_text(SCRIPT)
    (folder / "run.log").write_text(
        format_mindformers_log(np.where(np.arange(40) < 20, LOSS, 0.9 * LOSS))
    )
    (folder / "reference.log").write_text(format_megatron_log(LOSS))
    (folder / "rules.yaml").write_text("{}\n")
    steps = [save_sgd_run(folder / side, rate=rate) for side, rate in (("ms", 0.1), ("pt", 0.2))]
    runs = (
        Run(
            settings=str(folder / settings),
            data=str(folder / data),
            log=str(folder / log),
            norms=str(of / "gradients_1.npz"),
            weights=str(of / f"weights_{step}.npz"),
            steps=str(of),
            dump=str(dump(name)),
            version=version,
        )
        for settings, data, log, of, step, name, version in (
            ("run.yaml", "ours", "run.log", steps[0], 0, "ms_mf_attn_scale", "1.7"),
            ("run.sh", "theirs", "reference.log", steps[1], 1, "pt_none", "0.12"),
        )
    )
    return dumpdiff.triage(Case(*runs, rules=(str(folder / "rules.yaml"),), min_steps=40))


@pytest.fixture(scope="module")
def dump_evidence(trace: Callable[[str], Trace]) -> Evidence:
    """Compare dumps that differ in a weight, and in the tables of rotary angles after it."""
    complete_trace = trace("v6.0_api_stack_summary")
    consumers = (
        "Functional.linear.0.forward",
        "Tensor.__mul__.2.forward",
        "Tensor.__mul__.3.forward",
    )
    rows: set[int] = set()
    for consumer in consumers:
        rows.update(find_tensors_like(complete_trace, consumer, "input.1"))
        rows.update(find_dependents(complete_trace, consumer))
    result = locate_divergence(scale_tensors(complete_trace, rows, 1.1), complete_trace)
    assert [finding.kind for finding in result.findings] == ["parameter", "constant"]
    return Evidence(dumps=summarize_dumps(result))


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which commands write their files."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_decision(
    cause: Cause | None, candidates: tuple[Place, ...] = (), symptom: str = "unknown"
) -> Decision:
    belief = dict.fromkeys(PLACES, 1 / len(PLACES))
    return Decision("differ", symptom, cause, candidates, "", belief=belief)  # type: ignore[arg-type]


def advise_everything(case: Case, evidence: Evidence) -> Iterator[Advice]:
    """Iterate over the advice for every possible conclusion."""
    for cause in CAUSES:
        for symptom in ("first loss", "gradients"):
            yield from advise(case, evidence, make_decision(cause, symptom=symptom))
    yield from advise(case, evidence, make_decision(None, PLACES))
    for verdict in ("agree", "inconclusive"):
        yield from advise(case, evidence, replace(make_decision(None), verdict=verdict))


def mark_whole_tensors(evidence: Evidence) -> Evidence:
    """Return the same evidence as if whole tensors had been compared."""
    assert evidence.dumps is not None
    return replace(evidence, dumps=replace(evidence.dumps, has_whole_tensors=True))


def parse_commands(*advice: Advice) -> list[list[str]]:
    """Return the arguments of every call of dumpdiff, in order."""
    calls = []
    for item in advice:
        for line in item.commands:
            call = re.sub(r'^eval "\$\((.*)\)"', r"\1", line)
            program, *arguments = shlex.split(call, comments=True)
            assert program == "dumpdiff"
            calls.append(arguments)
    return calls


def find_command(arguments: list[str]) -> str:
    """Return the command that would run. Raises click's error if it rejects the arguments."""
    command: click.Command = main
    name, words = "", list(arguments)
    while isinstance(command, click.Group):
        context = click.Context(command)
        subcommand = command.get_command(context, words[0])
        if subcommand is None and command is not main:  # the first command of a group needs no name
            words.insert(0, command.list_commands(context)[0])
            continue
        assert subcommand is not None, f"there is no command {words[0]}"
        name, command = words.pop(0), subcommand
    with suppress(click.exceptions.Exit):  # --help
        command.make_context(name, words)
    return name


def test_every_advised_command_is_taken(
    triage_result: TriageResult, dump_evidence: Evidence, working_folder: Path
) -> None:
    cases = (
        (triage_result.case, triage_result.evidence),
        (triage_result.case, dump_evidence),
        (triage_result.case, mark_whole_tensors(dump_evidence)),
        (Case(), Evidence()),
    )
    advice = [item for case, evidence in cases for item in advise_everything(case, evidence)]
    calls = parse_commands(*advice)
    assert {find_command(arguments) for arguments in calls} >= {
        "settings",
        "data",
        "compare",
        "convert",
        "align",
        "narrow",
        "explain",
        "logs",
        "optimizer",
        "mindspore",
        "msprobe",
        "env",
        "snippet",
    }


def test_the_check_of_commands_sees_a_wrong_command() -> None:
    with pytest.raises(click.UsageError, match="No such option"):
        find_command(["data", "a", "b", "--sequence-length", "8"])
    with pytest.raises(click.UsageError, match="Missing parameter"):
        find_command(["align", "a"])


@pytest.mark.parametrize("cause", ["settings", "data", "weights", "schedule", "optimizer"])
def test_what_is_advised_shows_what_the_stage_found(
    triage_result: TriageResult, working_folder: Path, cause: Cause
) -> None:
    stage = triage_result.evidence.find_stage("logs" if cause == "schedule" else cause)
    assert stage is not None
    assert stage.verdict == "differ"
    arguments = parse_commands(
        *advise(triage_result.case, triage_result.evidence, make_decision(cause))
    )[0]
    result = CliRunner().invoke(main, [*arguments, "-q"])
    assert result.exit_code == 1, result.output
    assert stage.headline in result.stdout.partition("\n")[0]


def test_token_files_are_cut_as_the_settings_say(triage_result: TriageResult) -> None:
    (call,) = parse_commands(
        *advise(triage_result.case, triage_result.evidence, make_decision("data"))
    )
    assert shlex.join(call[3:]) == (
        "--seq-length 64 --global-batch-size 8 --micro-batch-size 2 --data-parallel 4"
        " --seed 78:77 --split 1.0,0.0,0.0 --samples 800 --loader mindformers:megatron -v"
    )


def test_a_dump_that_is_advised_can_be_configured_and_is_of_that_step(
    working_folder: Path, triage_result: TriageResult
) -> None:
    advice = (
        advise(Case(), Evidence(), make_decision("forward")),
        advise(triage_result.case, triage_result.evidence, make_decision("long run")),
    )
    for items, step in zip(advice, (0, 20), strict=True):
        for arguments in parse_commands(*items):
            if arguments[0] != "logs":
                result = CliRunner().invoke(main, arguments)
                assert result.exit_code == 0, result.output
        assert f'"iteration": "{step}"' in (working_folder / "dump.json").read_text()
        assert re.search(rf'"step": \[\s*{step}\s*\]', (working_folder / "config.json").read_text())
        (working_folder / "dump.json").unlink()
        (working_folder / "config.json").unlink()


def test_statistics_are_narrowed_down(triage_result: TriageResult, working_folder: Path) -> None:
    dumps = triage_result.evidence.dumps
    assert dumps is not None
    unexplained = replace(
        dumps, findings=tuple(replace(finding, causes=()) for finding in dumps.findings)
    )
    evidence = replace(triage_result.evidence, dumps=unexplained)
    (item,) = advise(triage_result.case, evidence, make_decision("forward"))
    assert item.reason == (
        "statistics show where the runs diverge, whole tensors show why;"
        " what to dump next around finding 1:"
    )
    assert [CliRunner().invoke(main, call).exit_code for call in parse_commands(item)] == [1, 0]
    assert (working_folder / "next").is_dir()


def test_the_first_finding_of_the_place_is_named_and_the_others_are_counted(
    dump_evidence: Evidence,
) -> None:
    dumps = dump_evidence.dumps
    assert dumps is not None
    findings = (*dumps.findings, replace(dumps.findings[1], rank=3))
    evidence = replace(dump_evidence, dumps=replace(dumps, findings=findings))
    (item,) = advise(Case(), evidence, make_decision("forward"))
    assert "around finding 2 (the first of 2 there)" in item.reason
    assert item.commands[1] == "dumpdiff narrow result.json --finding 2 -o next"


def test_what_dumps_show_of_weights_is_advised_to_be_looked_at(dump_evidence: Evidence) -> None:
    first, second = advise(Case(), dump_evidence, make_decision("weights"))
    assert first.reason.startswith("compare the checkpoints: give weights: of both runs")
    assert second.reason == "look at finding 1:"


def test_where_there_are_whole_tensors_what_was_tried_is_shown(dump_evidence: Evidence) -> None:
    (item,) = advise(Case(), mark_whole_tensors(dump_evidence), make_decision("forward"))
    assert item.reason.startswith("no hypothesis explains finding 2")
    assert item.commands[1] == "dumpdiff explain result.json --finding 2"


@pytest.mark.parametrize("place", ["data", "weights", "forward", "backward", "optimizer"])
def test_what_was_given_and_cannot_be_read_is_not_asked_for_again(place: Place) -> None:
    evidence = Evidence(stages=(Stage(place, "inconclusive", "a.bin: cut off"),))
    advice = advise(Case(), evidence, make_decision(place))
    assert any(
        item.reason.endswith("could not be used; fix it, and triage again: a.bin: cut off")
        for item in advice
    )
    assert not any("give " in item.reason for item in advice)
