"""Logs of verl: ``step:1 - actor/pg_loss:0.01 - actor/grad_norm:0.5 - actor/lr:1e-06 - ...``.

The output of releases 0.3 to 0.7 was examined, of the PPO trainer and of the SFT trainer. Numbers
may be printed as ``np.float64(0.01)``.
"""

from __future__ import annotations

import re

from .curves import Curves, PrintedStep, build_curves
from .log_text import find_matching_lines, parse_number
from .metric_names import LOSSES, NORMS, RATES, find_name

FORMAT = "verl"
LINE_PATTERN = "step:<n> - train/loss:... - train/lr:..."

_RECORD = re.compile(r"\bstep:(\d{1,9}) - ")
_PAIR = re.compile(r"([\w/@.()-]+?):(?:np\.\w+\()?([^\s()]+)\)?(?= - |\s*$)")
#: A name with the factor by which the number was multiplied.
_SCALED_RATE = "train/lr(1e-3)"
_SCALE = 1e-3


def parse(text: str, path: str) -> Curves | None:
    """Return the run in a log, or None if it has no line of this format."""
    if "step:" not in text:
        return None
    printed_steps = []
    for match, line in find_matching_lines(_RECORD, text):
        fields = dict(_PAIR.findall(line))
        loss_name = find_name(fields, LOSSES)
        if not loss_name:
            continue  # the line of a validation
        norm = fields.get(find_name(fields, NORMS), "")
        rate = fields.get(find_name(fields, RATES), "")
        if _SCALED_RATE in fields:
            rate = str(_SCALE * parse_number(fields[_SCALED_RATE]))
        printed_steps.append(PrintedStep(int(match[1]), fields[loss_name], norm, rate))
    if not printed_steps:
        return None
    return build_curves(printed_steps, path, FORMAT, "step lines")
