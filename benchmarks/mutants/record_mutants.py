"""Record a family in PyTorch several times, each time with one call changed.

    python benchmarks/mutants/record_mutants.py OUT --model lstm --count 8 --seed 1

Functions are wrapped after the recorder has wrapped them, so that a record shows what the changed
call is given. The calls are chosen at random, each mutation at most once. OUT/0, OUT/1, ... hold a
dump each, OUT/mutants.json says what was changed.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "localise"), str(HERE.parents[1] / "fixtures")]

import families  # noqa: E402
import torch  # noqa: E402
from families.record_pytorch import convert_to_tensor  # noqa: E402
from msprobe.pytorch import PrecisionDebugger, seed_all  # noqa: E402
from msprobe_config import write_config  # noqa: E402
from mutations import MUTATIONS, OWNERS, Mutation, list_mutations  # noqa: E402
from torch import Tensor, nn  # noqa: E402

#: Calls that are tried until a mutation applies to one.
_MAX_TRIALS = 4


class CallCounter:
    """Counts the calls of a forward pass, and changes one of them."""

    def __init__(self, function: str = "", number: int = -1, mutation: Mutation | None = None):
        self.function, self.number, self.mutation = function, number, mutation
        self.counts: Counter[str] = Counter()
        self.is_changed = False
        self._is_inside = False  # of another call

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Wrap all functions that a mutation changes; undo it at the end."""
        originals = []
        for name in sorted({name for mutation in MUTATIONS for name in mutation.functions}):
            owner, _, attribute = name.partition(".")
            original = getattr(OWNERS[owner], attribute)
            originals.append((OWNERS[owner], attribute, original))
            setattr(OWNERS[owner], attribute, self._wrap(name, original))
        try:
            yield
        finally:
            for owner, attribute, original in originals:
                setattr(owner, attribute, original)

    def _wrap(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **keywords: Any) -> Any:
            if self._is_inside:
                return original(*args, **keywords)
            number = self.counts[name]
            self.counts[name] += 1
            self._is_inside = True
            try:
                if (name, number) == (self.function, self.number) and self.mutation is not None:
                    result = self.mutation.change(original, args, keywords)
                    if result is not None:
                        self.is_changed = True
                        return result
                return original(*args, **keywords)
            finally:
                self._is_inside = False

        return call


class Run:
    """A network with its batch that begins each pass from the same state."""

    def __init__(self, model: Any) -> None:
        seed_all(seed=1, mode=True)
        torch.set_num_threads(1)
        self.network: nn.Module = families.import_net(model.name, "pytorch").build_loss(model)
        self._batch = [convert_to_tensor(values) for values in model.batch()]
        self._state = {name: value.clone() for name, value in self.network.state_dict().items()}

    def pass_through(self, counter: CallCounter) -> Tensor:
        """Run forward and backward, and return the loss."""
        self.network.zero_grad(set_to_none=True)
        self.network.load_state_dict(self._state)
        torch.manual_seed(1)
        with counter.watch():
            loss = self.network(*self._batch)
        loss.backward()
        return loss


def choose_mutants(run: Run, count: int, seed: str) -> list[tuple[str, int, Mutation]]:
    """Return (function, number of its call, mutation) of calls that can be changed."""
    counter = CallCounter()
    run.pass_through(counter)
    generator = random.Random(seed)
    candidates = list_mutations(sorted(counter.counts))
    generator.shuffle(candidates)
    mutants: dict[str, tuple[str, int, Mutation]] = {}
    for function, mutation in candidates:
        if len(mutants) == count:
            break
        for _ in range(_MAX_TRIALS if mutation.name not in mutants else 0):
            number = generator.randrange(counter.counts[function])
            if _can_change(run, CallCounter(function, number, mutation)):
                mutants[mutation.name] = (function, number, mutation)
                break
    return list(mutants.values())


def _can_change(run: Run, counter: CallCounter) -> bool:
    """Return whether the network runs with a change."""
    try:
        loss = run.pass_through(counter)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False  # shapes that do not fit any more, an argument that is not there
    return counter.is_changed and math.isfinite(loss.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", required=True, choices=families.NAMES)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    run = Run(families.build(args.model))
    mutants = choose_mutants(run, args.count, f"{args.model}-{args.seed}")
    out = args.out.resolve()
    out.mkdir(parents=True)
    config = write_config(out, "tensor", "mix")
    settings = {**json.loads(config.read_text()), "step": list(range(len(mutants)))}
    config.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config_path=str(config))
    for step, mutant in enumerate(mutants):
        debugger.start(model=run.network)
        run.pass_through(CallCounter(*mutant))
        debugger.stop()
        debugger.step()
        (out / str(step)).mkdir()
        (out / f"step{step}").rename(out / str(step) / "step0")
    entries = [
        {"call": f"{function} {number}", "mutation": mutation.name, "causes": mutation.causes}
        for function, number, mutation in mutants
    ]
    (out / "mutants.json").write_text(json.dumps(entries, indent=1))


if __name__ == "__main__":
    main()
