"""Chinese text: the catalog is complete, and only what people read is translated."""

# ruff: noqa: RUF001 - Chinese punctuation

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from jinja2 import Environment, nodes
from results import FINDING, make_result
from rich.console import Console

import dumpdiff
from dumpdiff.cli import main
from dumpdiff.model.verdict import VALUE_STATES, AlignmentVerdict
from dumpdiff.reports import outputs
from dumpdiff.reports.alignment import text
from dumpdiff.reports.language import (
    VARIABLE,
    find_language,
    read_catalog,
    translate,
    use_chosen_language,
)
from dumpdiff.reports.page.assets import TEMPLATES
from dumpdiff.run_settings.checklist import load_items

from .messages import find_code_messages, find_messages, list_placeholders

CHINESE = re.compile("[\u4e00-\u9fff]")

PAGE_TEMPLATES = sorted(TEMPLATES.rglob("*.html"))

#: What stays as it is between the tags: the name of the program, keys.
NAMES = {"dumpdiff", "Esc"}


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "zh")


def test_the_catalog_has_every_message_and_no_other() -> None:
    assert set(read_catalog("zh")) == find_messages()


def test_a_translation_has_the_placeholders_of_its_message() -> None:
    for message, translation in read_catalog("zh").items():
        assert list_placeholders(translation) == list_placeholders(message), message


def test_every_message_of_the_code_is_given_its_values() -> None:
    for message, values in find_code_messages():
        assert {name for name, _ in list_placeholders(message)} == values, message


def test_every_translation_is_chinese_or_a_name_of_the_field() -> None:
    same = {message for message, text in read_catalog("zh").items() if not CHINESE.search(text)}
    assert same == {
        "dtype",
        "id",
        "rank",
        "ranks",
        "step",
        "steps",
        "{count} of {total}",
        "{count} ({phases})",
        "{kind} in {phase}",
        "dropout",
        "z-loss",
        *(
            ", ",
            ": ",
            "; ",
            "{sentence}.",
            "{share} ({side})",
            "{stage} {verdict}",
            "{word} ({cause}): {text}",
        ),
    }


def test_terms_are_those_of_the_chinese_glossary() -> None:
    glossary = (Path(__file__).parents[2] / "docs" / "glossary.zh.md").read_text(encoding="utf-8")
    terms = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", glossary, re.MULTILINE))
    catalog = read_catalog("zh")
    common = terms.keys() & catalog.keys()
    assert {*VALUE_STATES, "target", "reference", "op", "tolerance", "scope"} <= common
    assert {word: catalog[word] for word in common} == {word: terms[word] for word in common}


@pytest.mark.parametrize("file", PAGE_TEMPLATES, ids=lambda file: file.stem)
def test_a_template_has_no_text_that_is_not_translated(file: Path) -> None:
    environment = Environment()
    environment.filters.update(number=str, percent=str, prose=str, sentence=str)
    tree = environment.parse(file.read_text(encoding="utf-8"))
    markup = "\0".join(data.data for data in tree.find_all(nodes.TemplateData))
    attributes = re.findall(r'(?:title|aria-label|placeholder)="([^"\0]+)"', markup)
    between_tags = re.sub(r"<[^>]*>", " ", markup)
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r'\S*="[^"]*"?|\S*"', " ", between_tags))
    assert set(words) <= NAMES
    assert attributes == []


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LC_MESSAGES": "zh_CN.UTF-8", "LANG": "en_US.UTF-8"}, "zh"),
        ({"LC_ALL": "", "LANG": "zh_CN"}, "zh"),
        ({VARIABLE: "en", "LC_ALL": "zh_CN.UTF-8"}, "en"),
    ],
)
def test_the_locale_chooses_the_language(environment: Mapping[str, str], language: str) -> None:
    assert find_language(environment) == language


@pytest.mark.usefixtures("chinese")
def test_only_the_body_is_translated() -> None:
    with use_chosen_language():
        assert translate("target") == "待验证侧"
    assert translate("target") == "target"


@pytest.mark.usefixtures("chinese")
def test_a_message_without_a_translation_stays_english() -> None:
    with use_chosen_language():
        assert translate("no such message, {count}", count=3) == "no such message, 3"


@pytest.mark.usefixtures("chinese")
def test_the_terminal_is_chinese_and_names_of_the_dump_are_not() -> None:
    stream = io.StringIO()
    text.write(make_result(), Console(file=stream, width=160))
    printed = stream.getvalue()
    first_line = printed.splitlines()[0]
    assert first_line.startswith("有偏差：layers.1.post_norm：")
    names = "layers.1.post_norm, rsqrt (Default/.../Rsqrt-op3) vs Torch.rsqrt.3.forward"
    assert FINDING.title.startswith(names)
    for words in ("待验证侧", "引入", "未比对", names, "相对 L2 误差 3.1e-2"):
        assert words in printed
    for word in (" forward ", " introduced", "not compared", " tolerance "):
        assert word not in printed


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("verdict", ["aligned", "inconclusive"])
def test_a_page_without_a_finding_has_the_answer_as_its_heading(verdict: AlignmentVerdict) -> None:
    result = make_result(verdict=verdict, findings=(), notes=("the dumps have no op in common",))
    stream = io.BytesIO()
    outputs.write(result, "html", stream)
    heading = re.search("<h1>(.*)</h1>", stream.getvalue().decode("utf-8"))
    assert heading is not None
    assert heading[1]


@pytest.mark.parametrize("output", [name for name in outputs.OUTPUTS if name != "html"])
def test_outputs_for_programs_do_not_depend_on_the_language(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    for language in ("en", "zh"):
        monkeypatch.setenv(VARIABLE, language)
        stream = io.BytesIO()
        outputs.write(make_result(), output, stream)
        written.append(stream.getvalue())
    assert written[0] == written[1]


def test_the_option_is_for_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code and the JSON are those of the English command."""
    monkeypatch.setenv(VARIABLE, "en")
    monkeypatch.chdir(dumpdiff.demo(tmp_path / "runs"))
    results = {}
    for language in ("zh", "en"):
        dumps = ["mindformers/dump", "megatron/dump", "--json", f"{language}.json"]
        outcome = CliRunner().invoke(main, ["align", *dumps, "--lang", language])
        document = json.loads(Path(f"{language}.json").read_text(encoding="utf-8"))
        document.pop("seconds", None)
        results[language] = (outcome.exit_code, document)
        assert bool(CHINESE.search(outcome.stdout)) == (language == "zh")
    assert results["zh"] == results["en"]
    assert os.environ[VARIABLE] == "en"


@pytest.fixture(scope="module")
def demo_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumpdiff.demo(tmp_path_factory.mktemp("demo") / "runs")


def test_weights_and_triage_answer_in_chinese(
    demo_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the triage: the conclusion, what was ruled out, and the advice."""
    monkeypatch.chdir(demo_runs)
    checkpoints = ["mindformers/checkpoint/model.ckpt", "megatron/checkpoint/model.pt"]
    weights = [item for side, file in zip("tr", checkpoints, strict=True)
               for item in (f"-{side}", f"weights={file}")]  # fmt: skip
    compared = CliRunner().invoke(main, ["weights", *checkpoints, "--lang", "zh"])
    triaged = CliRunner().invoke(main, ["triage", *weights, "--lang", "zh"])
    answer = "权重相同，逐位相同：21 个参数，100 % 的元素"
    assert compared.stdout.splitlines()[0] == answer
    assert "参数  21 逐位相同；比对了 100 % 的元素" in compared.stdout
    assert triaged.stdout.splitlines()[0] == (
        "定位：没有找到原因：权重一致；尚未排除：前向，数据，反向，优化器，学习率，长期训练"
    )
    assert f"权重，依据权重：{answer}" in triaged.stdout
    advice = "请在两次训练中 dump 第 1 个 step 的统计量（dump:）；它最能区分尚未排除的部分（前向，"
    assert advice in triaged.stdout


@pytest.mark.parametrize(
    ("command", "first_line"),
    [
        (
            "data mindformers/batch.npz megatron/batch.npz",
            "数据一致：token id：相同的 2 个样本，每个 8 个 token，逐位相同",
        ),
        (
            "logs mindformers/train.log megatron/train.log",
            "日志不一致：首个 loss（step 1）5.10704 对 5.23081，相差 1.2e-1（2.4 %）",
        ),
        (
            "settings mindformers/settings.yaml megatron/train.sh",
            "配置无法判断：rotary percent：MindSpore Transformers：未设置，"
            "且 MindSpore Transformers 的默认值未知；1（Megatron-LM 的默认值），另有 4 项；"
            "54 项配置相同，另有 14 项两侧均为默认值",
        ),
    ],
)
def test_a_stage_answers_in_chinese(
    command: str, first_line: str, demo_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(demo_runs)
    outcome = CliRunner().invoke(main, [*command.split(), "--lang", "zh", "-q"])
    assert outcome.stdout.splitlines() == [first_line]


def test_every_item_of_the_checklist_is_chinese() -> None:
    """All of it: its clauses are messages of their own, none stays English within a sentence."""
    titles, items = load_items()
    messages = read_catalog("zh_sentences")
    for sentence in (*titles.values(), *(item.requirement for item in items)):
        assert set(sentence.split("; ")) <= messages.keys(), sentence


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        (
            "checklist mindformers/settings.yaml megatron/train.sh",
            [
                "检查清单无法判断：29 项满足，1 项建议，2 项无法判断，17 项需要人工勾选",
                "[~] 融合的算子相同（注意力、旋转位置编码、归一化、SwiGLU、query-key-value）；"
                "硬件不同时，已逐一确认",
                "      bias dropout fusion：false（MindSpore Transformers 的默认值），"
                "true（Megatron-LM 的默认值）",
            ],
        ),
        (
            "inspect mindformers/dump",
            [
                "mindspore, npy files of 2.4 or newer, step 0, rank 0, graph 0",
                "算子          421（180 前向，241 反向）",
                "张量          1458，其中 1366 个有自己的文件",
            ],
        ),
        (
            "verify megatron/dump",
            [
                "自检一致：3,046 项检查未发现矛盾；读取了 545 个文件中的 545 个",
                "输出与其算子的计算结果     79       0          0",
            ],
        ),
        ("golden record megatron/dump golden.json", ["基准：已将 272 个值记录到 golden.json"]),
        ("golden check megatron/dump golden.json", ["基准检查一致：272 个相同"]),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else "",
)
def test_a_command_on_one_run_answers_in_chinese(
    command: str, lines: list[str], demo_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(demo_runs)
    outcome = CliRunner().invoke(main, [*command.split(), "--lang", "zh"])
    assert set(lines) <= set(outcome.stdout.splitlines())
