"""The lines that a training script needs to be recorded by msprobe."""

from __future__ import annotations

from ...model.errors import DumpError
from .fields import MINDSPORE, PYTORCH
from .version import Version, format_version

#: Script -> (frameworks, what it is).
SCRIPTS = {
    "plain": ((PYTORCH, MINDSPORE), "your own training loop"),
    "megatron": ((PYTORCH,), "Megatron-LM or MindSpeed: megatron/training/training.py"),
    "mindformers": ((MINDSPORE,), "MindSpore Transformers: the script that makes the Trainer"),
}

_FIRST_WITH_CALLBACK: Version = (1, 3)  #: the first version with MsprobeStep

_LOOP = """\
# {where_import}
from msprobe.{framework} import PrecisionDebugger, seed_all

# {where_made}
seed_all(seed=1234, mode=True)
PrecisionDebugger(config_path={config!r})

# {where_start}
PrecisionDebugger.start({model})

# {where_stop}
PrecisionDebugger.stop()
PrecisionDebugger.step()
"""

_PLACES = {
    (PYTORCH, "plain"): {
        "where_import": "after 'import torch' (and 'import torch_npu')",
        "where_made": "before the model is made",
        "where_start": "in the loop, before the forward pass",
        "where_stop": "in the loop, after optimizer.step()",
        "model": "model=model",
    },
    (PYTORCH, "megatron"): {
        "where_import": "megatron/training/training.py: after 'import torch' "
        "(and what MindSpeed patches)",
        "where_made": "in pretrain(), after initialize_megatron(...)",
        "where_start": "in train(), before the call of 'train_step('; "
        "model is a list of chunks, which msprobe accepts",
        "where_stop": "in train(), after that call",
        "model": "model=model",
    },
    (MINDSPORE, "plain"): {
        "where_import": "after 'import mindspore'",
        "where_made": "before the network is made; PyNative mode "
        "(for graph mode see dump-config mindspore)",
        "where_start": "in the loop, before the forward pass",
        "where_stop": "in the loop, after the optimizer",
        "model": "model",
    },
}

_TRAINER = """\
# before the network is made; with mode: 1 (PyNative) in the YAML;
# for graph mode see dump-config mindspore
from msprobe.mindspore import MsprobeStep, PrecisionDebugger, seed_all
seed_all(seed=1234, mode=True)
debugger = PrecisionDebugger(config_path={config!r})

# the Trainer starts, stops and steps it: add it to its callbacks
trainer = Trainer(..., callbacks=[MsprobeStep(debugger)])
"""


def build_script_lines(config: str, framework: str, script: str, version: Version) -> str:
    """Return lines to paste, with comments for the places; ``config`` is the path of config.json.

    A process has one PrecisionDebugger, and class methods reach it: no variable must be passed
    between functions. The functions of Megatron-LM are those of core 0.6 and later. Raises
    DumpError for a script of another framework, and for a version without a hook for the script.
    """
    if framework not in SCRIPTS[script][0]:
        raise DumpError(f"--script {script} is for {SCRIPTS[script][0][0]}, not {framework}")
    if script == "mindformers":
        if version < _FIRST_WITH_CALLBACK:
            raise DumpError(
                f"--script mindformers: MsprobeStep needs msprobe "
                f"{format_version(_FIRST_WITH_CALLBACK)} or later"
            )
        return _TRAINER.format(config=config)
    return _LOOP.format(framework=framework, config=config, **_PLACES[framework, script])
