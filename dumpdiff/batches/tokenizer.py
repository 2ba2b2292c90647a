"""Token ids as text, by a ``tokenizer.json``, so that a person can read what a network was given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..model.arrays import AnyArray
from ..model.errors import DumpError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def open_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``. Raises DumpError if it is none, or the package is not installed."""
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
    except (
        Exception
    ) as error:  # the package raises Exception itself for a file that it cannot parse
        raise DumpError(
            f"{file}: expected a tokenizer.json ({str(error).splitlines()[0]})"
        ) from None


def list_special_ids(tokenizer: Tokenizer) -> dict[int, str]:
    """Id -> content of the tokens that are no text: beginnings, ends, padding."""
    added = tokenizer.get_added_tokens_decoder()
    return {int(i): token.content for i, token in sorted(added.items()) if token.special}


def decode_tokens(tokenizer: Tokenizer, tokens: AnyArray) -> str:
    """The text of (length,) ids, special ones shown; ids that the tokenizer does not have are shown as numbers."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    known = (tokens >= 0) & (tokens < size)
    if known.all():
        return str(tokenizer.decode(tokens.tolist(), skip_special_tokens=False))
    parts, run = [], []
    for token, has in zip(tokens.tolist(), known.tolist(), strict=True):
        if has:
            run.append(token)
            continue
        parts += [tokenizer.decode(run, skip_special_tokens=False), f"<{token}?>"]
        run = []
    return "".join([*parts, tokenizer.decode(run, skip_special_tokens=False)])
