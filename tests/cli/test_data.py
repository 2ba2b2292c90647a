"""``dumpdiff data`` as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from batches.input_files import draw_samples, write_token_files, write_tokenizer
from schemas import check

from .conftest import Run

Dump = Callable[[str], Path]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_token_files(tmp_path_factory.mktemp("corpus") / "text_document")


@pytest.mark.parametrize(
    ("names", "code", "begins"),
    [
        (
            ("demo_mindspore", "demo_pytorch"),
            0,
            "data agree: token ids: the same 2 samples of 16 tokens, bit for bit",
        ),
        (
            ("ms_graph", "demo_pytorch"),
            1,
            "data differ: token ids: another batch: 0 % of the tokens are equal, first at",
        ),
        (
            ("v6.0_api_stack", "v6.0_api_stack_summary"),
            3,
            "data inconclusive: token ids: max 121, min 5 on both sides",
        ),
    ],
)
def test_the_first_line_is_the_answer_and_the_exit_code(
    run: Run, dump: Dump, names: tuple[str, str], code: int, begins: str
) -> None:
    result = run("data", *map(dump, names), "-q")
    assert (result.exit_code, result.stdout.count("\n")) == (code, 1)
    assert result.stdout.startswith(begins)


def test_a_batch_that_megatron_drew_is_found_in_its_files(
    run: Run, corpus: Path, tmp_path: Path
) -> None:
    tokens, labels = draw_samples(([str(corpus)], None), 4, length=16, samples=30, split="1,0,0")
    np.savez(tmp_path / "batch.npz", tokens=tokens, labels=labels)
    cut = ("--seq-length", 16, "--global-batch-size", 4, "--samples", 30, "--split", "1,0,0")
    result = run("data", tmp_path / "batch.npz", corpus, *cut, "-v")
    assert result.exit_code == 0
    for text in (
        "40 documents",
        "seed 1234, split 1,0,0, 30 samples",
        " ".join(map(str, tokens[0, :12])),
    ):
        assert text in result.stdout
    assert run("data", tmp_path / "batch.npz", corpus, *cut, "--seed", 5).exit_code == 1


def test_two_values_are_those_of_either_side(run: Run, corpus: Path) -> None:
    command = (
        "data",
        corpus,
        corpus,
        "--seq-length",
        16,
        "--global-batch-size",
        8,
        "--split",
        "1,0,0",
        "--samples",
        30,
    )
    assert run(*command, "--seed", "7").exit_code == 0
    assert run(*command, "--seed", "7:8").exit_code == 1
    outcome = run(
        *command, "--data-parallel", 2, "--micro-batch-size", 2, "--loader", "megatron:mindformers"
    )
    assert outcome.exit_code == 0
    assert (
        "4 of 8 samples go to a different rank, first sample 1: rank 0 against rank 1"
        in outcome.stdout
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seed", "1:2:3"), "is not VALUE or TARGET:REFERENCE"),
        (("--seed", "x"), "'x' is not a valid integer"),
        (("--loader", "megatron:torch"), "'torch' is not one of"),
        ((), "set their length with --seq-length"),
    ],
)
def test_wrong_options_are_exit_code_2(
    run: Run, corpus: Path, options: tuple[str, ...], message: str
) -> None:
    result = run("data", corpus, corpus, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_json_holds_findings_order_and_first_place(run: Run, tmp_path: Path) -> None:
    text = np.arange(60).reshape(3, 20) * 7 % 53
    np.savez(tmp_path / "a.npz", text=text)
    np.savez(tmp_path / "b.npz", text=text[[2, 0, 1]])
    document = json.loads(run("data", tmp_path / "a.npz", tmp_path / "b.npz", "--json", "-").stdout)
    check(document, "data")
    assert (document["name"], document["verdict"], document["relation"]) == (
        "data",
        "agree",
        "reordered",
    )
    assert document["reference_samples"] == [1, 2, 0]
    assert document["headline"].startswith(
        "token ids: the same 3 samples in another order: 1, 2, 0; the mean loss"
    )
    assert document["target"]["fields"] == ["tokens", "labels"]
    text[1, 4] += 1
    np.savez(tmp_path / "b.npz", text=text)
    document = json.loads(run("data", tmp_path / "a.npz", tmp_path / "b.npz", "--json", "-").stdout)
    check(document, "data")
    assert document["first_difference"] == [1, 4]
    assert document["findings"][0]["state"] == "differ"


def test_the_sample_that_differs_is_printed_as_text(run: Run, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    file = write_tokenizer(tmp_path)
    ids = np.array(
        [Tokenizer.from_file(str(file)).encode(text).ids for text in ("same batch", "same batch")]
    )
    other = ids.copy()
    other[1, -1] = 1
    np.savez(tmp_path / "a.npz", tokens=ids)
    np.savez(tmp_path / "b.npz", tokens=other)
    result = run(
        "data",
        tmp_path / "a.npz",
        tmp_path / "b.npz",
        "--tokenizer",
        file,
        "--json",
        tmp_path / "data.json",
    )
    assert "text of the target, sample 1\n  same batch\n" in result.stdout
    assert "text of the reference, sample 1\n  same" in result.stdout
    assert "</s> (1) 1 times" in result.stdout
    document = json.loads((tmp_path / "data.json").read_text())
    check(document, "data")
    assert document["texts"]["target, sample 1"] == "same batch"


def test_wrong_input_is_one_line_and_exit_code_2(run: Run, tmp_path: Path) -> None:
    result = run("data", tmp_path / "gone", tmp_path / "gone")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "no such file or folder, and no gone.idx next to it" in result.stderr
