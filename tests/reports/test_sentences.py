"""Stored sentences in Chinese: all that the code makes, and nothing but known clauses."""

# ruff: noqa: RUF001 - Chinese punctuation

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from results import FINDING, make_result

from dumpdiff.reports import outputs
from dumpdiff.reports.language import VARIABLE, read_catalog, use_chosen_language
from dumpdiff.reports.sentences import translate_known_sentence, translate_sentence

from .messages import list_placeholders
from .stored_sentences import EXAMPLES, OTHER_STRINGS, find_sentences, list_strings

CATALOG = read_catalog("zh_sentences")
CHINESE = re.compile("[\u4e00-\u9fff]")

#: Words that stay in Chinese sentences: names of functions, arguments, programs, of the field.
NAMES = {
    *("base", "batch", "clip", "detach", "dropout", "dtype", "dump", "epsilon", "gate", "logits"),
    *("log", "logsumexp", "loss", "rank", "scale", "sigmoid", "silu", "softmax", "softplus"),
    *("step", "tanh", "hard", "task", "tensor", "token", "gelu", "erf", "exp", "alpha", "eps"),
    *("Adam", "Huber", "RMS", "Mul", "mul", "add", "float", "ceil", "floor", "trunc", "top"),
    *("MindSpore", "PyTorch", "NaN", "Inf", "optimizer", "msprobe", "level", "mix", "weight"),
    *("dumpdiff", "verify", "input", "output", "micro", "kernel", "Linear"),
    *("concat", "pad", "mode"),
    *("data", "dump", "log", "steps", "triage", "weights"),  # keys of a case
    *(
        "Lion",
        "Nesterov",
        "SGD",
        "and",
        "AdamW",
        "AdamWeightDecay",
        "bprop",
        "stop",
        "gradient",
        "transformers",
    ),
    *("precision", "settings", "target", "reference"),  # of options
    *("YAML", "checkpoint", "config", "json", "RoPE", "ulp", "warmup", "bfloat", "Adam"),
}


@pytest.fixture(autouse=True)
def chinese(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, "zh")
    with use_chosen_language():
        yield


def test_every_sentence_of_the_code_is_translated() -> None:
    english = {}
    for place, sentence in find_sentences():
        translation = translate_sentence(sentence)
        words = set(re.findall("[A-Za-z]{3,}", translation)) - NAMES
        if words:
            english[place] = f"{sentence} -> {translation}"
    assert english == {}


def test_examples_are_of_strings_that_the_code_has() -> None:
    assert {*EXAMPLES, *OTHER_STRINGS} <= list_strings()


def test_a_translation_has_the_placeholders_of_its_message() -> None:
    for message, translation in CATALOG.items():
        assert list_placeholders(translation) == list_placeholders(message), message


@pytest.mark.parametrize(
    ("sentence", "translation"),
    [
        (
            "layers.1.attention, mul (Expand/Mul-op1) vs Tensor.__mul__.16.forward: relative L2 "
            "7.5e-1, inputs agree to 3.2e-7; scalar argument 0.0883883 against 0.353553",
            "layers.1.attention, mul (Expand/Mul-op1) vs Tensor.__mul__.16.forward：相对 L2 误差 "
            "7.5e-1，输入一致（误差不超过 3.2e-7）；标量参数 0.0883883 对 0.353553",
        ),
        (
            "layers.1.attention of the reference behaves as attention scores 4 times the target's; "
            "recorded: the target multiplies by 0.09 (Mul-op1), the reference multiplies by 0.35 "
            "(Tensor.__mul__.16.forward): 0.09 against 0.35; residual 3.2e-7",
            "标杆侧的 layers.1.attention 的行为相当于：注意力分数为待验证侧的 4 倍；"
            "录制的数据：待验证侧乘以 0.09（Mul-op1），标杆侧乘以 0.35"
            "（Tensor.__mul__.16.forward）：0.09 对 0.35；残差 3.2e-7",
        ),
        (
            "excluded: norm-kind leaves 9.9e-1, mask-kind leaves 1.2e0",
            "已排除：归一化类型不同（norm-kind）的残差为 9.9e-1，"
            "掩码类型不同（mask-kind）的残差为 1.2e0",
        ),
        (
            "the target has no gradient of 6 of 9 parameters that the reference has one of: w.a, "
            "w.b and 4 more; frozen, detached, or not recorded",
            "标杆侧有梯度的 9 个参数中，待验证侧缺少 6 个的梯度：w.a，w.b 和另外 4 个；"
            "被冻结、被 detach 或未录制",
        ),
        (
            "layers.1 behaves as without its bias (b.weight)",
            "layers.1 的行为相当于：缺少偏置（b.weight）",
        ),
        (
            "last op recomputed in float64 from its own inputs: the reference differs by 3.0e-8, "
            "the target differs by 2.4e-8",
            "用各自的输入以 float64 重算最后一个算子：标杆侧的误差为 3.0e-8，"
            "待验证侧的误差为 2.4e-8",
        ),
        (
            "2 records of the target cannot be relied on (damaged entry skipped)",
            "待验证侧的 2 条记录不可信（damaged entry skipped）",
        ),
        (
            "wrong rows (1 of 16: 3), 0.9 times the reference's",
            "部分行有误（16 行中 1 行：3），为标杆侧的 0.9 倍",
        ),
        (
            "hard sigmoid, clip(x / 6 + 0.5, 0, 1) for the gates; the reference has sigmoid",
            "各个门使用 hard sigmoid，即 clip(x / 6 + 0.5, 0, 1)；标杆侧为 sigmoid",
        ),
        (
            "smooth L1 loss with beta = 0.25 (mean); the reference has smooth L1 loss",
            "平滑 L1 损失（beta = 0.25）（均值）；标杆侧为平滑 L1 损失",
        ),
        (
            "recorded with max -3.4, min 0.8, norm 4.2",
            "记录为最大值 -3.4，最小值 0.8，范数 4.2",
        ),
        (
            "no op inside read that; Torch.add.0 input.0 has max 3, min 0",
            "内部没有算子读取该值；Torch.add.0 input.0 为最大值 3，最小值 0",
        ),
        (
            "3 of 8 elements differ, such as 1.5 where it computes 2.5: a damaged record, or a "
            "wrong kernel",
            "8 个元素中有 3 个不同，例如 1.5，而算得 2.5：记录损坏，或 kernel 有误",
        ),
        (
            "270 identical, 2 changed; first: Linear.0 output.0: shape 2x3, was 3x2",
            "270 个相同，2 个已改变；首个：Linear.0 output.0：形状为 2x3，原为 3x2",
        ),
        (
            "missing edges were bridged: 6 by the other side's dump",
            "已补上缺失的边：6 条依据另一侧的 dump",
        ),
    ],
)
def test_a_stored_sentence_is_translated_and_its_names_are_not(
    sentence: str, translation: str
) -> None:
    assert translate_sentence(sentence) == translation


@pytest.mark.parametrize(
    "sentence",
    [
        "a sentence without any message of the catalog",
        "the target was written by a program of another time",
        "layers.target.reference.mul",
        "Expand/without-op1",
        "",
    ],
)
def test_what_is_not_known_stays_english_as_a_whole(sentence: str) -> None:
    assert translate_sentence(sentence) == sentence


def test_a_cell_of_which_a_part_is_not_known_stays_english() -> None:
    known, unknown = "learning rates equal over 11 steps", "the same operators are fused"
    assert translate_known_sentence(known) == "11 个 step 的学习率相等"
    assert translate_known_sentence(f"{known}; {unknown}") == f"{known}; {unknown}"


def test_braces_of_a_name_are_no_placeholders() -> None:
    title = "parameter {name} holds what {0.__class__} holds in the reference"
    assert translate_sentence(title) == "参数 {name} 等于标杆侧的 {0.__class__}"


def test_a_hostile_name_is_not_searched_for_clauses() -> None:
    title = "without no has the target (" * 4_000
    assert translate_sentence(title) == title


@pytest.mark.parametrize("part", ["; ", ", ", " and ", ": ", "without no ", "the target ", " vs "])
def test_repeated_joints_and_messages_end(part: str) -> None:
    assert "7" in translate_sentence(f"7{part * (1_900 // len(part))}")


def test_a_translated_page_is_escaped() -> None:
    title = "parameter <script>alert(x)</script> holds what b holds in the reference"
    result = make_result(findings=(replace(FINDING, title=title),))
    stream = io.BytesIO()
    outputs.write(result, "html", stream)
    page = stream.getvalue().decode("utf-8")
    assert "等于标杆侧的" in page
    assert "&lt;script&gt;alert(x)&lt;/script&gt;" in page
    assert "<script>alert(x)" not in page
