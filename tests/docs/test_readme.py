"""Every command that the README shows runs as printed on the demo, and its example is what it
prints.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dumpdiff.cli import main
from dumpdiff.reports.alignment.first_line import MAX_LENGTH

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE_README = (ROOT / "README.zh.md").read_text(encoding="utf-8")
_SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_DEMO_OUTPUT = re.compile(r"<!-- demo: begin -->\n```\n(.*?)```\n<!-- demo: end -->", re.DOTALL)

_BLOCK = re.compile(r"^```.*?^```|^    .*?$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
_CODE = re.compile(r"`[^`\n]+`")
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_LANGUAGES = {"README.md", "README.zh.md"}  #: each page links to the other one

#: The first line of these is that of a file.
_PRINT_FILES = ("dumpdiff snippet",)
_STAGES = ("checklist", "data", "logs", "norms", "optimizer", "settings", "weights")
_SETTING = "bias dropout fusion"  #: the only setting of the demo whose name has three words
#: Three lower-case words in a row are no name.
_ENGLISH_SENTENCE = re.compile("(?:(?<![-_.a-zA-Z])[a-z]{2,} ){2}[a-z]{2,}(?![-_.a-zA-Z])")

_EXAMPLE_WIDTH = 126  #: columns of the terminal that the README shows

#: aligned or written 0, diverged or differ 1, inconclusive 3, the place of a mismatch 11 to 19; 2
#: and 70 would be a wrong command or a bug.
SUCCESS = {0, 1, 3, *range(11, 20)}


def shown_commands() -> list[str]:
    return "".join(_SHELL_BLOCK.findall(README)).splitlines()


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert "Traceback" not in result.stderr, result.stderr
    return result


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Result]:
    """Command -> its outcome. Only the unpacked demo is there, as after an installation."""
    outcomes = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("COLUMNS", str(_EXAMPLE_WIDTH))
        monkeypatch.chdir(tmp_path_factory.mktemp("readme"))
        for command in shown_commands():
            program, *arguments = shlex.split(command)
            if program == "cd":
                monkeypatch.chdir(arguments[0])
                continue
            assert program == "dumpdiff", command
            outcomes[command] = run(*arguments)
    return outcomes


def test_every_command_runs_as_printed(outcomes: Mapping[str, Result]) -> None:
    commands = shown_commands()
    assert commands[:2] == ["dumpdiff demo", "cd dumpdiff_demo"]
    assert len(commands) == 15
    for command, outcome in outcomes.items():
        assert outcome.exit_code in SUCCESS, f"{command}\n{outcome.output}"


def test_every_first_line_is_short(outcomes: Mapping[str, Result]) -> None:
    for command, outcome in outcomes.items():
        line = outcome.stdout.split("\n", maxsplit=1)[0]
        assert len(line) <= MAX_LENGTH or command.startswith(_PRINT_FILES), command


def test_no_line_ends_in_blanks(outcomes: Mapping[str, Result]) -> None:
    for command, outcome in outcomes.items():
        lines = outcome.stdout.splitlines()
        assert [line for line in lines if line.endswith(" ")] == [], command


def test_no_sentence_of_a_stage_stays_english(
    outcomes: Mapping[str, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of formats and versions are no sentences."""
    monkeypatch.chdir(tmp_path)
    run("demo", ".")
    for command in outcomes:
        _, name, *arguments = shlex.split(command)
        if name not in _STAGES:
            continue
        printed = run(name, *arguments, "--lang", "zh").stdout
        english = [line for line in printed.splitlines() if _has_english_sentence(line)]
        assert english == [], command


def _has_english_sentence(line: str) -> bool:
    return _ENGLISH_SENTENCE.search(line.replace(_SETTING, "")) is not None


def test_the_example_is_what_the_demo_prints(outcomes: Mapping[str, Result]) -> None:
    shown = _DEMO_OUTPUT.search(README)
    assert shown is not None
    printed = outcomes["dumpdiff align mindformers/dump megatron/dump -o result"].stdout
    assert printed.splitlines() == shown[1].splitlines()


def test_links_lead_somewhere() -> None:
    for target in _LINK.findall(README) + _LINK.findall(CHINESE_README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_both_languages_link_to_each_other() -> None:
    assert "README.zh.md" in _LINK.findall(README)
    assert "README.md" in _LINK.findall(CHINESE_README)


def test_the_chinese_page_shows_the_same_commands_and_examples() -> None:
    assert _BLOCK.findall(CHINESE_README) == _BLOCK.findall(README)
    assert len(_BLOCK.findall(README)) == 8


def test_the_chinese_page_has_the_same_sections_tables_and_links() -> None:
    assert _outline(CHINESE_README) == _outline(README)
    assert _count_links(CHINESE_README) == _count_links(README)


def test_the_chinese_page_has_the_same_names_and_numbers() -> None:
    english, chinese = _BLOCK.sub("", README), _BLOCK.sub("", CHINESE_README)
    assert Counter(_CODE.findall(chinese)) == Counter(_CODE.findall(english))
    percent = r"\d+ %"
    assert re.findall(percent, chinese) == re.findall(percent, english) != []
    assert set(_NUMBER.findall(english)) <= set(_NUMBER.findall(chinese))


def _outline(page: str) -> list[str]:
    """Return the kind of each heading, table row and list item, in order."""
    lines = _BLOCK.sub("", page).splitlines()
    marks = (re.match(r"#+ |\||- ", line) for line in lines)
    return [mark[0] for mark in marks if mark]


def _count_links(page: str) -> Counter[str]:
    return Counter(target for target in _LINK.findall(page) if target not in _LANGUAGES)
