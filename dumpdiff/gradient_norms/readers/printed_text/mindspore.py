"""Local norms in logs of MindSpore: the trainer's block, the monitor's lines, and what auto-parallel prints.

- ``local_norm: True`` of MindSpore Transformers' wrapper prints squares in the order of the trainable parameters,
  with their sizes and without names (releases 1.3 to 1.8);
- ``monitor_config`` prints a line ``Epoch:[...], step:[...] local_norm/NAME: NORM``, the root taken; so does the code
  of ``dumpdiff snippet local-norm``, without the epoch;
- ``dump_local_norm`` of MindSpore's auto-parallel context prints three lines: a title, the name, the root.
"""

from __future__ import annotations

import re

from .block import NUMBER, Block, by_turns

_BLOCK = re.compile(r"^local_norm:\s*\[([^\]]{0,4000000})\]", re.MULTILINE)
_SIZES = re.compile(r"norm_size:\s*[(\[]([\d,\s]{0,4000000})[)\]]")
_BEFORE = 1 << 22  #: characters before a block in which its sizes stand
#: Patterns begin with plain text, which is found many times faster; what stands before it is looked at afterwards.
_LINE = re.compile(rf"local_norm/([^\s:]{{1,400}}):[ \t]*(\[?{NUMBER}\]?)")
_STEP = re.compile(
    r"(?:Epoch:\[\s*(\d{1,9})/\s*\d+\],\s*)?step:\[\s*(\d{1,9})(?:/\s*(\d{1,9}))?\],?[ \t]+$"
)
_HEAD = 80  #: characters before a norm that hold its step
_DUMPED = re.compile(
    rf"dump local norm:[ \t]*\r?\n?\s*([\w./\-]{{1,400}})\s+(?:Tensor\([^\n]{{0,200}}?value=\s*)?\[?({NUMBER})"
)


def trainer_blocks(text: str) -> list[Block]:
    """Blocks of MindSpore Transformers, without steps: those are on the lines that follow."""
    found: list[Block] = []
    for match in _BLOCK.finditer(text) if "local_norm:" in text else ():
        before = text.rfind("norm_size:", max(match.start() - _BEFORE, 0), match.start())
        sizes = _SIZES.match(text, before) if before >= 0 else None
        counts = tuple(map(int, re.findall(r"\d+", sizes[1]))) if sizes is not None else ()
        texts = match[1].split()
        notes: tuple[str, ...] = ()
        if "..." in texts:  # NumPy leaves out the middle of more than 1000
            first, last = texts.index("..."), len(texts) - texts.index("...") - 1
            texts = [part for part in texts if part != "..."]
            left_out = f"{len(counts) - first - last} of {len(counts)}" if counts else "most"
            counts = (
                (*counts[:first], *counts[len(counts) - last :])
                if len(counts) > first + last
                else ()
            )
            notes = (
                f"{left_out} norms are left out of the print; set numpy.set_printoptions(threshold=sys.maxsize)",
            )
        sizes_fit = counts if len(counts) == len(texts) else ()
        if texts:
            found.append(Block(tuple(texts), sizes=sizes_fit, place=match.start(), notes=notes))
    return found


def monitor_blocks(text: str) -> list[Block]:
    """One block for each step of the monitor's lines, and of our snippet's."""
    steps: dict[int, dict[str, str]] = {}
    again: set[int] = set()
    for match in _LINE.finditer(text):
        head = _STEP.search(text[max(match.start() - _HEAD, 0) : match.start()])
        if head is None:
            continue
        epoch, step, length = int(head[1] or 1), int(head[2]), int(head[3] or 0)
        at = (max(epoch, 1) - 1) * length + step
        named = steps.setdefault(at, {})
        if match[1] in named:
            again.add(at)  # a process that began anew: what it printed last counts
        named[match[1]] = match[2].strip("[]")
    return [
        Block(
            tuple(named.values()),
            tuple(named),
            step=step,
            notes=("some norms are printed twice for this step: the later counts",)
            if step in again
            else (),
        )
        for step, named in sorted(steps.items())
    ]


def dumped_blocks(text: str) -> list[Block]:
    """One block for each time that a parameter is printed again, in no order."""
    return list(by_turns((match[1], match[2]) for match in _DUMPED.finditer(text)))
