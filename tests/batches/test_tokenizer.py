"""Samples as text, decoded with a real tokenizer."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from dumpdiff.batches.tokenizer import decode_tokens, list_special_ids, open_tokenizer
from dumpdiff.model.errors import DumpError

from .input_files import write_tokenizer


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return open_tokenizer(write_tokenizer(tmp_path))


def test_encoded_text_is_decoded(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("the same batch").ids
    assert decode_tokens(tokenizer, np.array(ids)) == "the same batch"


def test_special_tokens_are_named_and_shown(tokenizer: Tokenizer) -> None:
    assert list_special_ids(tokenizer) == {0: "<pad>", 1: "</s>"}
    assert (
        decode_tokens(tokenizer, np.array([*tokenizer.encode("same").ids, 1, 0])) == "same</s><pad>"
    )


def test_unknown_ids_are_shown_as_numbers(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("same").ids
    assert (
        decode_tokens(tokenizer, np.array([*ids, 99999, -100, *ids])) == "same<99999?><-100?>same"
    )


def test_a_folder_with_a_tokenizer_is_accepted(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    assert open_tokenizer(tmp_path).get_vocab_size() > 256


def test_files_that_are_no_tokenizer_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    for path, message in (
        (tmp_path / "x.json", r"expected a tokenizer\.json"),
        (tmp_path / "gone.json", "no such file"),
    ):
        with pytest.raises(DumpError, match=message) as error:
            open_tokenizer(path)
        assert "\n" not in str(error.value)


def test_the_error_without_the_package_explains_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original_import: Callable[..., Any] = builtins.__import__

    def import_without_tokenizers(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return original_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", import_without_tokenizers)
    with pytest.raises(DumpError, match=r"pip install 'dumpdiff\[tokenizer\]'"):
        open_tokenizer("tokenizer.json")
