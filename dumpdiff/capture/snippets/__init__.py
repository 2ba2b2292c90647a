"""Code to paste into a training script, for what environment variables cannot set.

The code comes from the templates in this package, for PyTorch and MindSpore. Megatron-LM and
MindSpore Transformers use the same code in other places.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template
from textwrap import wrap

KINDS = {
    "seed": "gives the same random numbers and the same arithmetic in every run",
    "local-norm": "prints the L2 norm of each parameter's gradient with its name",
    "save-grads": "saves the gradient of each parameter for the other run to load",
    "load-grads": "replaces the gradients by saved ones before the optimizer step",
    "dump": "dumps the steps that the configuration selects",
}

#: The kind that needs a result: see :func:`build_graft_snippet`.
GRAFT = "graft"
GRAFT_SUMMARY = "loads the reference's value of one module into the target's run"


@dataclass(frozen=True)
class Framework:
    """A framework and the places where its users paste code."""

    template_folder: str  #: the folder of the templates
    config: str  #: default file name of the dump configuration
    places: dict[str, str]  #: kind of snippet -> file, place in it, call


_MEGATRON_STEP = "megatron/training/training.py, in train_step(), before 'optimizer.step()'"
_CALLBACK = (
    "mindformers/core/callback/callback.py, with "
    "'@MindFormerRegister.register(MindFormerModuleType.CALLBACK)' above the last class; and "
    "'- type: {}' under 'callbacks' in the YAML file"
)

FRAMEWORKS = {
    "pytorch": Framework(
        "pytorch",
        "config.json",
        {
            "seed": "the training script; call fix_randomness() first",
            "local-norm": "the training script; call print_local_norms(model) between "
            "backward() and the optimizer",
            "save-grads": "the training script; call save_gradients(model) between "
            "backward() and the optimizer",
            "load-grads": "the training script; call load_gradients(model) between "
            "backward() and the optimizer",
            "dump": "the training script, at four places; "
            "'dumpdiff dump-config msprobe' writes the configuration",
        },
    ),
    "megatron": Framework(
        "pytorch",
        "config.json",
        {
            "seed": "pretrain_gpt.py; call fix_randomness() first under "
            "'if __name__ == \"__main__\":'. Train with --seed $seed too, because Megatron-LM "
            "sets the seed again, and with --attention-dropout 0 --hidden-dropout 0",
            "local-norm": f"{_MEGATRON_STEP}:\n"
            "print_local_norms(model, optimizer.get_loss_scale().item())",
            "save-grads": f"{_MEGATRON_STEP}:\n"
            "save_gradients(model, loss_scale=optimizer.get_loss_scale().item())",
            "load-grads": f"{_MEGATRON_STEP}:\n"
            "load_gradients(model, loss_scale=optimizer.get_loss_scale().item())",
            "dump": "Megatron-LM, at four places; "
            "'dumpdiff dump-config msprobe' writes the configuration",
        },
    ),
    "mindspore": Framework(
        "mindspore",
        "dump.json",
        {
            "seed": "the training script; call fix_randomness() first",
            "local-norm": "the training script; put LocalNorms into the cell, "
            "or add ShowLocalNorms() to the callbacks",
            "save-grads": "the training script; put SavedGradients into the cell, "
            "or add SaveGradients() to the callbacks",
            "load-grads": "the training script; put GivenGradients into the cell, "
            "or add GiveGradients() to the callbacks",
            "dump": "the first lines of the training script; "
            "or set the variable outside, see 'dumpdiff env'",
        },
    ),
    "mindformers": Framework(
        "mindspore",
        "dump.json",
        {
            "seed": "run_mindformer.py; call fix_randomness() first in main(). "
            "Set 'seed: $seed' in the YAML file too",
            "local-norm": _CALLBACK.format("ShowLocalNorms")
            + ". ('local_norm: True' in the YAML file prints squares without names.)",
            "save-grads": _CALLBACK.format("SaveGradients"),
            "load-grads": _CALLBACK.format("GiveGradients"),
            "dump": "the first lines of run_mindformer.py; "
            "or set the variable outside, see 'dumpdiff env'",
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
    """Return the code of one of KINDS for one of FRAMEWORKS, ready to paste.

    ``rank`` is the process that prints or saves, ``folder`` is the folder of the gradients, and
    ``config`` is the dump configuration (of msprobe for PyTorch, of MindSpore otherwise). A value
    that the code does not need is ignored. Raises KeyError for an unknown kind or framework.
    """
    target = FRAMEWORKS[framework]
    config = target.config if config is None else config
    values = {
        "seed": seed,
        "rank": rank,
        "folder": _escape_quotes(folder),
        "config": _escape_quotes(config),
    }
    comments = [f"dumpdiff: {KINDS[kind]}", *f"Paste into: {target.places[kind]}".splitlines()]
    lines = [line for text in comments for line in wrap(text, 110, break_long_words=False)]
    header = Template("".join(f"# {line}\n" for line in lines)).substitute(values)
    if kind == "dump" and target.template_folder == "pytorch":
        return header + _build_msprobe_lines(framework, config)
    body = (_TEMPLATES / target.template_folder / f"{kind}.py.txt").read_text(encoding="utf-8")
    return header + Template(body).substitute(values)


def build_graft_snippet(framework: str, folder: str) -> str:
    """Return the code that loads every value of a folder into the target's run.

    ``framework`` is that of the target, pytorch or mindspore.
    """
    place = (
        "the training script; call graft_modules(model) before PrecisionDebugger.start(model=model)"
    )
    comments = [f"dumpdiff: {GRAFT_SUMMARY}", f"Paste into: {place}"]
    header = "".join(f"# {line}\n" for line in comments)
    body = (_TEMPLATES / framework / f"{GRAFT}.py.txt").read_text(encoding="utf-8")
    return header + Template(body).substitute(folder=_escape_quotes(folder))


def _build_msprobe_lines(framework: str, config: str) -> str:
    from ..msprobe import LATEST, build_script_lines

    return build_script_lines(
        config, "pytorch", "megatron" if framework == "megatron" else "plain", LATEST
    )


def _escape_quotes(text: str) -> str:
    """Return the text, escaped for double quotes in Python."""
    return text.encode("unicode_escape").decode("ascii").replace('"', '\\"')
