"""Shards of Mamba 2 in Megatron: each rank has its own share of every part of a projection.

Source: megatron-core 0.16.1 ssm/mamba_mixer.py (``in_proj_partition_sizes`` and
``sharded_state_dict``).
"""

from __future__ import annotations

import re
from collections.abc import Callable

_PARAMETER = re.compile(r"^(.*\bmixer\.)(in_proj|conv1d|norm|A_log|D|dt_bias)(\.weight|\.bias)?$")
_OUTPUT = re.compile(r"\bmixer\.out_proj\.weight$")

Shape = tuple[int, ...]


def is_output_projection(name: str) -> bool:
    """Return whether a weight is the row-parallel projection at the end of a mixer."""
    return _OUTPUT.search(name) is not None


def compute_part_sizes(
    name: str, get_shape: Callable[[str], Shape | None]
) -> tuple[int, ...] | None:
    """Return the rows of each part in a rank's share of a parameter; None if it is no mixer's.

    ``get_shape`` returns the shape of a rank's share of another parameter, None if there is none.
    The parts are z, x, B, C and dt of the input projection, and x, B and C of the convolution.
    """
    match = _PARAMETER.match(name)
    if match is None:
        return None
    prefix, module = match[1], match[2]
    output, heads, projection = (
        get_shape(prefix + other) for other in ("out_proj.weight", "A_log", "in_proj.weight")
    )
    if not output or not heads or not projection:
        return None
    inner, n_heads = output[-1], heads[0]
    state, remainder = divmod(projection[0] - 2 * inner - n_heads, 2)
    if state <= 0 or remainder:
        return None
    if module == "in_proj":
        return (inner, inner, state, state, n_heads)
    if module == "conv1d":
        return (inner, state, state)
    return (inner,) if module == "norm" else (n_heads,)
