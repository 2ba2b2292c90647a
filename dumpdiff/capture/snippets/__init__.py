"""Code to paste into a training script: what has to be done inside a run and cannot be set from outside.

The texts are templates beside this module, written for PyTorch and MindSpore; Megatron-LM and MindSpore Transformers
take the same code at places of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template
from textwrap import wrap

KINDS = {
    "seed": "the same random numbers and the same arithmetic in every run",
    "local-norm": "prints the L2 norm of every parameter's gradient, named",
    "save-grads": "saves every parameter's gradient, to be loaded by the other run",
    "load-grads": "lets the optimizer work on saved gradients",
    "dump": "dumps the steps that a configuration asks for",
}


@dataclass(frozen=True)
class Framework:
    """A framework, and where its users paste code."""

    template_folder: str  #: the folder of the templates
    config: str  #: what the configuration of its dumper is called by default
    places: dict[str, str]  #: kind of snippet -> file, place and call


_MEGATRON_STEP = "megatron/training/training.py, in train_step(), before 'optimizer.step()'"
_CALLBACK = (
    "mindformers/core/callback/callback.py, with '@MindFormerRegister.register(MindFormerModuleType.CALLBACK)' above "
    "the last class; and '- type: {}' under 'callbacks' in the YAML file"
)

FRAMEWORKS = {
    "pytorch": Framework(
        "pytorch",
        "config.json",
        {
            "seed": "the training script; call fix_randomness() first of all",
            "local-norm": "the training script; call print_local_norms(model) between backward() and the optimizer",
            "save-grads": "the training script; call save_gradients(model) between backward() and the optimizer",
            "load-grads": "the training script; call load_gradients(model) between backward() and the optimizer",
            "dump": "the training script, at four places; the configuration is by 'dumpdiff dump-config msprobe'",
        },
    ),
    "megatron": Framework(
        "pytorch",
        "config.json",
        {
            "seed": "pretrain_gpt.py; call fix_randomness() first under 'if __name__ == \"__main__\":'. Train with "
            "--seed $seed too, since Megatron-LM seeds once more, and with --attention-dropout 0 --hidden-dropout 0",
            "local-norm": f"{_MEGATRON_STEP}:\nprint_local_norms(model, optimizer.get_loss_scale().item())",
            "save-grads": f"{_MEGATRON_STEP}:\nsave_gradients(model, loss_scale=optimizer.get_loss_scale().item())",
            "load-grads": f"{_MEGATRON_STEP}:\nload_gradients(model, loss_scale=optimizer.get_loss_scale().item())",
            "dump": "Megatron-LM, at four places; the configuration is by 'dumpdiff dump-config msprobe'",
        },
    ),
    "mindspore": Framework(
        "mindspore",
        "dump.json",
        {
            "seed": "the training script; call fix_randomness() first of all",
            "local-norm": "the training script; put LocalNorms into the cell, or ShowLocalNorms() among callbacks",
            "save-grads": "the training script; put SavedGradients into the cell, or SaveGradients() among callbacks",
            "load-grads": "the training script; put GivenGradients into the cell, or GiveGradients() among callbacks",
            "dump": "the first lines of the training script; or set the variable outside, see 'dumpdiff env'",
        },
    ),
    "mindformers": Framework(
        "mindspore",
        "dump.json",
        {
            "seed": "run_mindformer.py; call fix_randomness() first in main(). Set 'seed: $seed' in the YAML file too",
            "local-norm": _CALLBACK.format("ShowLocalNorms")
            + ". ('local_norm: True' in the YAML file prints squares without names.)",
            "save-grads": _CALLBACK.format("SaveGradients"),
            "load-grads": _CALLBACK.format("GiveGradients"),
            "dump": "the first lines of run_mindformer.py; or set the variable outside, see 'dumpdiff env'",
        },
    ),
}

_TEMPLATES = Path(__file__).parent / "templates"


def build_snippet(
    kind: str,
    framework: str,
    *,
    seed: int = 42,
    rank: int = 0,
    folder: str = "gradients",
    config: str | None = None,
) -> str:
    """The code of one of :data:`KINDS` for one of :data:`FRAMEWORKS`, ready to paste.

    ``rank`` is the process that prints or saves, ``folder`` holds the gradients, ``config`` is the configuration of
    the dump (that of msprobe for PyTorch, MindSpore's own otherwise); each is used where the code has it. Raises
    KeyError for a kind or framework that there is not.
    """
    target = FRAMEWORKS[framework]
    config = target.config if config is None else config
    values = {"seed": seed, "rank": rank, "folder": _escape_quotes(folder), "config": _escape_quotes(config)}
    comments = [f"dumpdiff: {KINDS[kind]}", *f"Paste into: {target.places[kind]}".splitlines()]
    lines = [line for text in comments for line in wrap(text, 110, break_long_words=False)]
    header = Template("".join(f"# {line}\n" for line in lines)).substitute(values)
    if kind == "dump" and target.template_folder == "pytorch":
        return header + _build_msprobe_lines(framework, config)
    body = (_TEMPLATES / target.template_folder / f"{kind}.py.txt").read_text(encoding="utf-8")
    return header + Template(body).substitute(values)


def _build_msprobe_lines(framework: str, config: str) -> str:
    from ..msprobe import LATEST, build_script_lines

    return build_script_lines(config, "pytorch", "megatron" if framework == "megatron" else "plain", LATEST)


def _escape_quotes(text: str) -> str:
    """The text as it stands between double quotes in Python."""
    return text.encode("unicode_escape").decode("ascii").replace('"', '\\"')
