"""Token ids as text, decoded with a ``tokenizer.json``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..model.arrays import AnyArray
from ..model.errors import DumpError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def open_tokenizer(path: str | Path) -> Tokenizer:
    """Open the tokenizer of a ``tokenizer.json``, or of a folder with one.

    Raises DumpError if it is none, or if the package tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise DumpError(
            "--tokenizer needs the package tokenizers: pip install 'dumpdiff[tokenizer]'"
        ) from None
    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise DumpError(f"{file}: no such file; expected the tokenizer.json of a model")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises Exception for a file that it cannot parse
        reason = str(error).splitlines()[0]
        raise DumpError(f"{file}: expected a tokenizer.json ({reason})") from None


def list_special_ids(tokenizer: Tokenizer) -> dict[int, str]:
    """Map the ids of tokens that are no text (begin, end, padding) to their names."""
    special_ids = {}
    for token_id, token in sorted(tokenizer.get_added_tokens_decoder().items()):
        if token.special:
            special_ids[int(token_id)] = token.content
    return special_ids


def decode_tokens(tokenizer: Tokenizer, tokens: AnyArray) -> str:
    """Return the text of (length,) ids with special tokens; unknown ids are shown as ``<id?>``."""
    vocabulary_size = tokenizer.get_vocab_size(with_added_tokens=True)
    texts: list[str] = []
    known_tokens: list[int] = []
    for token in tokens.tolist():
        if 0 <= token < vocabulary_size:
            known_tokens.append(token)
            continue
        texts.append(tokenizer.decode(known_tokens, skip_special_tokens=False))
        texts.append(f"<{token}?>")
        known_tokens = []
    texts.append(tokenizer.decode(known_tokens, skip_special_tokens=False))
    return "".join(texts)
