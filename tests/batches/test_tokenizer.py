"""A sample as text, by a real tokenizer."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from dumpdiff.batches.tokenizer import decode_tokens, open_tokenizer, list_special_ids
from dumpdiff.model.errors import DumpError

from .written import tokenizer_file


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return open_tokenizer(tokenizer_file(tmp_path))


def test_a_sample_is_what_was_encoded(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the same batch").ids
    assert decode_tokens(tokenizer, np.array(ids)) == "the same batch"


def test_special_tokens_are_named_and_shown(tokenizer: Tokenizer) -> None:
    assert list_special_ids(tokenizer) == {0: "<pad>", 1: "</s>"}
    assert decode_tokens(tokenizer, np.array([*tokenizer.encode("same").ids, 1, 0])) == "same</s><pad>"


def test_ids_that_the_tokenizer_lacks_are_shown_as_numbers(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("same").ids
    assert decode_tokens(tokenizer, np.array([*ids, 99999, -100, *ids])) == "same<99999?><-100?>same"


def test_a_folder_with_a_tokenizer_is_as_good(tmp_path: Path) -> None:
    tokenizer_file(tmp_path)
    assert open_tokenizer(tmp_path).get_vocab_size() > 256


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for path, said in (
        (tmp_path / "x.json", r"expected a tokenizer\.json"),
        (tmp_path / "gone.json", "no such file"),
    ):
        with pytest.raises(DumpError, match=said) as caught:
            open_tokenizer(path)
        assert "\n" not in str(caught.value)


def test_without_the_package_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DumpError, match=r"pip install 'dumpdiff\[tokenizer\]'"):
        open_tokenizer("tokenizer.json")
