"""The sound pairs of recordings into which damages go."""

from __future__ import annotations

from dataclasses import dataclass

import faults
from recordings import MINDSPORE, PYTORCH, Recording, list_recordings


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


#: Clean cases of benchmarks/localise, graph mode against msprobe: those of the optimizer hold the
#: values of the step, too.
_CASES = ("clean", "optimizer")

#: Model -> options of two PyTorch runs that compute the same by other names or other operators.
_PYTORCH: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "llama": (("--names", "hf", "--attention", "sdpa"), ("--names", "hf")),
    "gpt2": (("--names", "hf", "--attention", "sdpa"), ("--names", "hf")),
    "gqa": (("--names", "hf"), ("--names", "mcore", "--fused", "blocks")),
    "moe": (("--names", "mcore", "--order", "vkq"), ("--names", "hf")),
    "mla": (("--names", "hf"), ("--names", "mcore")),
    "resnet": (("--names", "mcore"), ()),
}


def _list_pairs() -> tuple[Pair, ...]:
    pairs = [
        Pair(f"{case.name}-graph", *list_recordings(case))
        for case in faults.CASES
        if case.benign and case.name.removeprefix(f"{case.model}-").startswith(_CASES)
    ]
    for model, options in _PYTORCH.items():
        target, reference = (Recording(PYTORCH, model, "none", side) for side in options)
        pairs.append(Pair(f"{model}-eager", target, reference))
    return tuple(pairs)


PAIRS = _list_pairs()

__all__ = ["MINDSPORE", "PAIRS", "PYTORCH", "Pair"]
