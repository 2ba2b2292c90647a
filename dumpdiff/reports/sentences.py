"""The sentences that a result stores, in the current language.

A result stores English sentences, so that JSON, CSV and saved folders are the same in every
language. Text and HTML show them translated: a sentence is matched against the messages of
``catalogs/<language>_sentences.po``, whose placeholders stand for what the code inserted.

A sentence is cut at "; ". Each clause is compared with all messages, the one with most literal text
first; what matches none is cut at ": ", then at ", " and at " and ", and its parts are tried. What
still has no match stays English. The name of a placeholder says what it may hold:

- ``{clause}``, ``{clause_2}``: another clause, which is translated, too
- ``{word}``: the same without a joint: "an input"
- ``{term}``: a word of the catalog of messages, such as a side, a phase or a cause
- ``{list}``: names or numbers with joints between them
- ``{name}``: one, without a blank
- ``{number}``: one, as the code formats it
- ``{text}``: anything; not translated, such as the message of a problem

No other placeholder stands for English that is not known: a sentence is then not half translated.

Names come from dumps and may hold anything. A message is matched by searching its pieces of literal
text from left to right, once each, so the time is linear in the length of a clause.
"""

from __future__ import annotations

import re
import string
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final

from .language import ENGLISH, get_language, read_catalog, translate

#: What separates the clauses of a sentence, widest first; messages of the catalog, too.
_JOINTS: Final = ("; ", ": ", ", ", " and ")
#: A longer sentence stays English: no sentence of a result is near it, but a name may be.
_MAX_LENGTH: Final = 2_000
#: Kind of placeholder -> what the text that it stands for does not hold.
_SEPARATORS: Final[Mapping[str, Sequence[str]]] = {
    "clause": (), "list": (), "text": (), "word": _JOINTS, "term": (" ",), "name": (" ",),
    "number": (" ",),
}  # fmt: skip
_MAX_DEPTH: Final = 4  #: of clauses in clauses
_MAX_CACHED: Final = 10_000
_NUMBER_STARTS: Final = (*"0123456789-+.", "inf", "nan")
#: A word of a sentence; single letters are names, and "and" also joins names.
_ENGLISH_WORD: Final = re.compile("(?!and$)[a-z]{2,}")
_FIRST_CHINESE: Final = "\u2e80"  #: characters from here on are Chinese, or their punctuation


@dataclass(frozen=True)
class _Message:
    """A message with placeholders, cut at them."""

    position: int  #: among all messages, those with most literal text first
    literals: tuple[str, ...]  #: one more than placeholders; the first and the last may be empty
    placeholders: tuple[str, ...]
    #: the same of its translation
    translated_literals: tuple[str, ...]
    translated_placeholders: tuple[str, ...]

    def match(self, clause: str) -> tuple[str, ...] | None:
        """Return what the placeholders stand for, None if the clause is another one."""
        first, *inner, last = self.literals
        end = len(clause) - len(last)
        position = len(first)
        if not clause.startswith(first) or not clause.endswith(last) or position >= end:
            return None
        values = []
        for literal in inner:
            start = clause.find(literal, position + 1, end)
            if start < 0:
                return None
            values.append(clause[position:start])
            position = start + len(literal)
        if position >= end:
            return None
        values.append(clause[position:end])
        return tuple(values)

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the translation with its values.

        There is a blank between Chinese and Latin characters, not between two Chinese ones.
        """
        text = self.translated_literals[0]
        literals = self.translated_literals[1:]
        for placeholder, literal in zip(self.translated_placeholders, literals, strict=True):
            text = _join(_join(text, values[placeholder]), literal)
        return text


def _join(left: str, right: str) -> str:
    if left[-1:] == " " and left[-2:-1] >= _FIRST_CHINESE and right[:1] >= _FIRST_CHINESE:
        return left[:-1] + right
    if left[-1:] >= _FIRST_CHINESE and right[:1] == " " and right[1:2] >= _FIRST_CHINESE:
        return left + right[1:]
    return left + right


def translate_sentence(sentence: str) -> str:
    """Return a stored sentence in the current language, as far as its clauses are known.

    The result is plain text: it is escaped like the sentence itself.
    """
    language = get_language()
    if language == ENGLISH or len(sentence) > _MAX_LENGTH:
        return sentence
    return _translate_parts(sentence.strip(), _JOINTS, language, 0)


def translate_known_sentence(sentence: str) -> str:
    """Return a sentence in the current language if all of it is known, else in English.

    For texts of which some are no sentences of the catalog, such as the cells of a table.
    """
    translation = translate_sentence(sentence)
    return sentence if _has_english_words(translation) else translation


def _translate_parts(text: str, joints: tuple[str, ...], language: str, depth: int) -> str:
    """Return a text whose parts between the first of the joints are translated."""
    joint, narrower_joints = joints[0], joints[1:]
    translated_joint = read_catalog(f"{language}_sentences")[joint]
    parts = text.split(joint)
    translated_parts = [_translate_clause(part, narrower_joints, language, depth) for part in parts]
    if translated_parts == parts:  # a list of names or numbers keeps its commas
        return text
    translation = translated_parts[0]
    for part in translated_parts[1:]:
        translation = _join(_join(translation, translated_joint), part)
    return translation


@lru_cache(maxsize=_MAX_CACHED)
def _translate_clause(clause: str, joints: tuple[str, ...], language: str, depth: int) -> str:
    if depth > _MAX_DEPTH:
        return clause
    exact_translation = read_catalog(f"{language}_sentences").get(clause)
    if exact_translation is not None:
        return exact_translation
    for message in _list_candidates(clause, language):
        values = message.match(clause)
        if values is not None:
            translated_values = _translate_values(message, values, language, depth + 1)
            if translated_values is not None:
                return message.fill(translated_values)
    return _translate_parts(clause, joints, language, depth) if joints else clause


def _translate_values(
    message: _Message, values: Sequence[str], language: str, depth: int
) -> dict[str, str] | None:
    """Return placeholder -> what stands there; None if it can not stand there."""
    translated_values = {}
    for placeholder, value in zip(message.placeholders, values, strict=True):
        kind = placeholder.partition("_")[0]
        if any(separator in value for separator in _SEPARATORS[kind]):
            return None
        if kind == "number" and not value.startswith(_NUMBER_STARTS):
            return None
        translated_value = value
        if kind == "term":
            translated_value = translate(value)
        elif kind in ("clause", "word"):
            translated_value = _translate_clause(value, _JOINTS, language, depth)
        is_message = value in read_catalog(f"{language}_sentences")
        if kind != "text" and not is_message and _has_english_words(translated_value):
            return None
        translated_values[placeholder] = translated_value
    return translated_values


def _has_english_words(text: str) -> bool:
    """Return whether two lower-case words follow each other: names and numbers do not."""
    is_word = [_ENGLISH_WORD.fullmatch(word) is not None for word in text.split(" ")]
    return any(map(all, pairwise(is_word)))


def _list_candidates(clause: str, language: str) -> list[_Message]:
    """Return the messages that a clause may be, those with most literal text first."""
    messages_by_word = _index_messages(language)
    words = {"", *clause.split()}
    candidates = [message for word in words for message in messages_by_word.get(word, ())]
    return sorted(candidates, key=lambda message: message.position)


@cache
def _index_messages(language: str) -> Mapping[str, Sequence[_Message]]:
    """Return the messages with placeholders, by a word that only they and few others have.

    Those without a whole word are those of ''.
    """
    catalog = read_catalog(f"{language}_sentences")
    texts = sorted(
        (text for text in catalog if "{" in text), key=lambda text: -len("".join(_cut(text)[0]))
    )
    messages_by_word = defaultdict(list)
    for position, text in enumerate(texts):
        message = _Message(position, *_cut(text), *_cut(catalog[text]))
        words = [word for word in text.split() if "{" not in word]
        messages_by_word[max(words, key=len, default="")].append(message)
    return messages_by_word


def _cut(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (literals, placeholders) of a message."""
    literals, placeholders = [""], []
    for literal, placeholder, _, _ in string.Formatter().parse(text):
        literals[-1] += literal
        if placeholder is not None:
            placeholders.append(placeholder)
            literals.append("")
    return tuple(literals), tuple(placeholders)
