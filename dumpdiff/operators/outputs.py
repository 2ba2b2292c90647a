"""Every output of a call, not just the first one, for kinds that record determines.

``recomputation`` has the first output of the kinds that causes are searched with. This module adds
gradient operators, operators with several outputs, and those with whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..model.arrays import AnyArray, Floats
from . import convolution_gradients, decisions, gradients, norms, scattering
from .call import Call, Interpretations, OutputSets, make_call
from .recomputation import KINDS

_SINGLE_OUTPUTS: Mapping[str, Callable[[Call], Interpretations]] = {
    **KINDS,
    **decisions.FUNCTIONS,
    **gradients.FUNCTIONS,
    **scattering.FUNCTIONS,
    **convolution_gradients.FUNCTIONS,
}
_SEVERAL_OUTPUTS: Mapping[str, Callable[[Call], OutputSets]] = {
    **gradients.SEVERAL_OUTPUTS,
    "layer_norm": norms.compute_layer_norm_outputs,
    "batch_norm": norms.compute_batch_norm_outputs,
    "topk": scattering.select_largest,
}
#: Canonical kinds of which :func:`compute_outputs` computes at least one output.
OUTPUT_KINDS = frozenset(_SINGLE_OUTPUTS) | frozenset(_SEVERAL_OUTPUTS)


def compute_outputs(
    kind: str,
    inputs: Sequence[AnyArray | float],
    keywords: Mapping[str, AnyArray | float],
    output_shape: tuple[int, ...],
) -> OutputSets:
    """Yield (name, outputs in slot order) of every interpretation of a call, the likeliest first.

    ``output_shape`` is that of the first output. None stands for an output that is not computed.
    Nothing is yielded if the kind is unknown or the inputs do not fit it.
    """
    if kind not in OUTPUT_KINDS:
        return
    call = make_call(kind, inputs, keywords, output_shape)
    with np.errstate(all="ignore"):
        try:
            if kind in _SEVERAL_OUTPUTS:
                yield from _SEVERAL_OUTPUTS[kind](call)
                return
            for name, output in _SINGLE_OUTPUTS[kind](call):
                if output.size == int(np.prod(output_shape, dtype=np.int64)):
                    yield name, (_reshape(output, output_shape),)
        except (ValueError, IndexError, TypeError, FloatingPointError):
            return  # the shapes do not fit: the record differs from the call that ran


def _reshape(output: AnyArray, shape: tuple[int, ...]) -> Floats:
    result: Floats = np.asarray(output, dtype=np.float64).reshape(shape)
    return result
