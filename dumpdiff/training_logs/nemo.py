"""Logs of NeMo: lines of NeMo 2 and the progress bar of NeMo 1.

``Training epoch 0, iteration 4/99 | lr: 1e-06 | global_step: 4 | reduced_train_loss: 11.03 | ...``
and ``Epoch 0: 5%|... 5/100 [..., reduced_train_loss=11.0, global_step=4.000, lr=1e-6, ...]``. Both
number the steps from 0, and the bar shows each step several times.
"""

from __future__ import annotations

import re

from .curves import Curves, PrintedStep, build_curves
from .log_text import NUMBER
from .metric_names import NORMS, RATES, find_name

FORMAT = "nemo"
LINE_PATTERN = "reduced_train_loss: ... global_step: ..."

_LINE = re.compile(r"^.*reduced_train_loss.*$", re.MULTILINE)
_PAIR = re.compile(rf"([A-Za-z][\w -]*?)\s*[:=]\s*({NUMBER})(?=[\s,|\]}}]|$)")
_LOSS, _STEP = "reduced_train_loss", "global_step"


def parse(text: str, path: str) -> Curves | None:
    """Return the run in a log, or None if it has no line of this format."""
    if _LOSS not in text or _STEP not in text:
        return None
    printed_steps: list[PrintedStep] = []
    for match in _LINE.finditer(text):
        fields = {name.strip(): value for name, value in _PAIR.findall(match[0])}
        if _LOSS not in fields or _STEP not in fields:
            continue
        step = int(float(fields[_STEP])) + 1
        if printed_steps and printed_steps[-1].step == step:
            printed_steps.pop()  # the bar prints a step again
        norm = fields.get(find_name(fields, NORMS), "")
        rate = fields.get(find_name(fields, RATES), "")
        printed_steps.append(PrintedStep(step, fields[_LOSS], norm, rate))
    if not printed_steps:
        return None
    note = "steps are numbered from 1; NeMo prints global_step from 0"
    return build_curves(printed_steps, path, FORMAT, _STEP, notes=[note])
