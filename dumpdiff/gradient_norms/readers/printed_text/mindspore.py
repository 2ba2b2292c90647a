"""Local norms in logs of MindSpore: of the trainer, of the monitor, and of auto-parallel.

- ``local_norm: True`` of MindSpore Transformers' wrapper prints squares in the order of the
  trainable parameters, with their sizes and without names (releases 1.3 to 1.8);
- ``monitor_config`` prints a line ``Epoch:[...], step:[...] local_norm/NAME: NORM`` with roots; so
  does the code of ``dumpdiff snippet local-norm``, without the epoch;
- ``dump_local_norm`` of MindSpore's auto-parallel context prints three lines: a title, the name,
  the root.
"""

from __future__ import annotations

import re

from .block import NUMBER, Block, split_by_repetition

_TRAINER_BLOCK = re.compile(r"^local_norm:\s*\[([^\]]{0,4000000})\]", re.MULTILINE)
_SIZES = re.compile(r"norm_size:\s*[(\[]([\d,\s]{0,4000000})[)\]]")
#: The sizes of a block are within this many characters before it.
_SIZES_DISTANCE = 1 << 22
#: NumPy prints this in place of the middle of an array of more than 1000 elements.
_ELLIPSIS = "..."

#: Patterns begin with plain text, which makes the search many times faster; what is printed before
#: it is matched afterwards.
_MONITOR_LINE = re.compile(rf"local_norm/([^\s:]{{1,400}}):[ \t]*(\[?{NUMBER}\]?)")
_STEP = re.compile(
    r"(?:Epoch:\[\s*(\d{1,9})/\s*\d+\],\s*)?step:\[\s*(\d{1,9})(?:/\s*(\d{1,9}))?\],?[ \t]+$"
)
#: The step of a norm is within this many characters before it.
_STEP_DISTANCE = 80
_DUMPED_NORM = re.compile(
    r"dump local norm:[ \t]*\r?\n?\s*([\w./\-]{1,400})\s+"
    rf"(?:Tensor\([^\n]{{0,200}}?value=\s*)?\[?({NUMBER})"
)


def find_trainer_blocks(text: str) -> list[Block]:
    """Return the blocks of MindSpore Transformers, without steps: these are on later lines."""
    if "local_norm:" not in text:
        return []
    blocks: list[Block] = []
    for match in _TRAINER_BLOCK.finditer(text):
        norm_texts = match[1].split()
        sizes = _find_sizes(text, match.start())
        notes: tuple[str, ...] = ()
        if _ELLIPSIS in norm_texts:
            n_first = norm_texts.index(_ELLIPSIS)
            n_last = len(norm_texts) - n_first - 1
            norm_texts = [norm_text for norm_text in norm_texts if norm_text != _ELLIPSIS]
            n_missing = "most"
            if sizes:
                n_missing = f"{len(sizes) - n_first - n_last} of {len(sizes)}"
            sizes = _cut_sizes(sizes, n_first, n_last)
            notes = (
                f"{n_missing} norms are left out of the print; set"
                " numpy.set_printoptions(threshold=sys.maxsize)",
            )
        if len(sizes) != len(norm_texts):
            sizes = ()
        if norm_texts:
            block = Block(tuple(norm_texts), sizes=sizes, offset=match.start(), notes=notes)
            blocks.append(block)
    return blocks


def _find_sizes(text: str, end: int) -> tuple[int, ...]:
    """Return the sizes that are printed before a block; () if there are none."""
    start = text.rfind("norm_size:", max(end - _SIZES_DISTANCE, 0), end)
    if start < 0:
        return ()
    match = _SIZES.match(text, start)
    if match is None:
        return ()
    return tuple(map(int, re.findall(r"\d+", match[1])))


def _cut_sizes(sizes: tuple[int, ...], n_first: int, n_last: int) -> tuple[int, ...]:
    """Return the sizes of the first and last norms, between which others are left out."""
    if len(sizes) <= n_first + n_last:
        return ()
    return (*sizes[:n_first], *sizes[len(sizes) - n_last :])


def find_monitor_blocks(text: str) -> list[Block]:
    """Return a block for each step of the monitor's lines, and of dumpdiff's snippet."""
    texts_by_step: dict[int, dict[str, str]] = {}
    repeated_steps: set[int] = set()
    for match in _MONITOR_LINE.finditer(text):
        line_start = text[max(match.start() - _STEP_DISTANCE, 0) : match.start()]
        step_match = _STEP.search(line_start)
        if step_match is None:
            continue
        epoch, epoch_step = int(step_match[1] or 1), int(step_match[2])
        epoch_length = int(step_match[3] or 0)
        step = (max(epoch, 1) - 1) * epoch_length + epoch_step
        texts_by_name = texts_by_step.setdefault(step, {})
        if match[1] in texts_by_name:
            repeated_steps.add(step)  # a process was restarted: its last print counts
        texts_by_name[match[1]] = match[2].strip("[]")
    blocks = []
    for step, texts_by_name in sorted(texts_by_step.items()):
        notes: tuple[str, ...] = ()
        if step in repeated_steps:
            notes = ("some norms are printed twice for this step: the later ones are used",)
        norm_texts = tuple(texts_by_name.values())
        blocks.append(Block(norm_texts, tuple(texts_by_name), step=step, notes=notes))
    return blocks


def find_dumped_blocks(text: str) -> list[Block]:
    """Return a block for each time that parameters are printed again, in any order."""
    pairs = [(match[1], match[2]) for match in _DUMPED_NORM.finditer(text)]
    return list(split_by_repetition(pairs))
