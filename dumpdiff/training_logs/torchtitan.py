"""Logs of torchtitan: ``step:  1  loss: 12.2253  grad_norm:  1.5  memory: ...``.

The output of releases 0.1 and 0.2 was examined. The loss is that of one step, averaged over ranks.
The learning rate is not printed.
"""

from __future__ import annotations

import re

from .curves import Curves, PrintedStep, build_curves
from .log_text import NUMBER

FORMAT = "torchtitan"
LINE_PATTERN = "step: <n>  loss: ...  grad_norm: ..."

_RECORD = re.compile(
    rf"(?<!validate )\bstep:\s*(\d{{1,9}})\s+(?:global_avg_)?loss:\s*({NUMBER})"
    rf"(?:\s+grad_norm:\s*({NUMBER}))?"
)


def parse(text: str, path: str) -> Curves | None:
    """Return the run in a log, or None if it has no line of this format."""
    if "loss:" not in text or "step:" not in text:
        return None
    printed_steps = [
        PrintedStep(int(match[1]), match[2], match[3] or "")
        for match in _RECORD.finditer(text)
        if int(match[1]) > 0
    ]
    if not printed_steps:
        return None
    return build_curves(printed_steps, path, FORMAT, "step lines")
