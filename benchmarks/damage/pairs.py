"""The sound pairs of recordings into which damages go."""

from __future__ import annotations

from dataclasses import dataclass

import faults
from recordings import PYTORCH, Recording, list_recordings


@dataclass(frozen=True)
class Pair:
    """Two correct runs of one model: the undamaged answer must be ``aligned``."""

    name: str
    target: Recording
    reference: Recording

    @property
    def model(self) -> str:
        """Return the name of the model that both ran."""
        return self.target.model

    @property
    def held_out(self) -> bool:
        """Return whether nobody may look at any damage of this pair while tuning."""
        return self.model == faults.HELD_OUT_MODEL

    @property
    def recordings(self) -> tuple[Recording, Recording]:
        """Return target and reference."""
        return self.target, self.reference


#: Cases of benchmarks/localise without a fault: graph mode of MindSpore against PyTorch. Those with
#: an optimizer hold the values of the step, too.
GRAPH_CASES = (
    "llama-clean",
    "gpt2-clean",
    "gqa-clean",
    "moe-clean",
    "mla-clean",
    "resnet-clean",
    "llama-optimizer",
)

#: Model and options of two PyTorch runs that compute the same by other names or other operators.
EAGER_RUNS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("llama", ("--names", "hf", "--attention", "sdpa"), ("--names", "hf")),
    ("gpt2", ("--names", "hf", "--attention", "sdpa"), ("--names", "hf")),
    ("gqa", ("--names", "hf"), ("--names", "mcore", "--fused", "blocks")),
    ("moe", ("--names", "mcore", "--order", "vkq"), ("--names", "hf")),
    ("mla", ("--names", "hf"), ("--names", "mcore")),
    ("resnet", ("--names", "mcore"), ()),
    (
        "llama",
        ("--names", "mcore", "--order", "vkq", "--optimizer"),
        ("--names", "hf", "--optimizer"),
    ),
)


def _list_pairs() -> tuple[Pair, ...]:
    cases = {case.name: case for case in faults.CASES}
    pairs = [Pair(f"{name}-graph", *list_recordings(cases[name])) for name in GRAPH_CASES]
    for model, *options in EAGER_RUNS:
        target, reference = (Recording(PYTORCH, model, "none", side) for side in options)
        kind = "optimizer-eager" if "--optimizer" in target.options else "eager"
        pairs.append(Pair(f"{model}-{kind}", target, reference))
    return tuple(pairs)


PAIRS = _list_pairs()
