"""Ports of transformers by mindone, whose operators all run on CPU."""

from __future__ import annotations

import mint_on_cpu
from mindspore import nn
from transformers_models import read_config

mint_on_cpu.substitute()

import mindone.transformers as ports  # noqa: E402
from mindone.transformers.modeling_utils import PreTrainedModel  # noqa: E402

# The weights are loaded; what draws them has no kernel on CPU.
PreTrainedModel._initialize_weights = lambda self, module: None


def build(name: str) -> nn.Cell:
    class_name, config = read_config(name)
    return getattr(ports, class_name)(config)
