"""``python -m fuzz --seconds 60``: mutated inputs of all targets, for so long each.

Failing inputs are written to ``regressions/TARGET/``, one for each place in the code. The exit code
is 1 if there is any.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

from .runner import REGRESSIONS, MutatedInputs, find_failure
from .targets import TARGETS, Target


def main() -> int:
    """Run the targets, print the figures of each, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", help="name of a target; default: all")
    parser.add_argument("--seconds", type=float, default=60, help="time for each target")
    parser.add_argument("--inputs", type=int, default=2**32, help="inputs of each target at most")
    parser.add_argument("--seed", type=int, default=0, help="number of the first input")
    options = parser.parse_args()
    n_inputs = n_failures = 0
    for target in TARGETS:
        if options.target and target.name not in options.target:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "input")
            path.mkdir()
            inputs = MutatedInputs(target, path)
            count, failures = run_target(inputs, options.seed, options.seconds, options.inputs)
        print(f"{target.name}: {count:,} inputs, {len(failures)} failures", flush=True)
        for failure in failures.values():
            print(failure, flush=True)
        n_inputs += count
        n_failures += len(failures)
    print(f"all: {n_inputs:,} inputs, {n_failures} failures")
    return int(n_failures > 0)


def run_target(
    inputs: MutatedInputs, first: int, seconds: float, max_inputs: int
) -> tuple[int, dict[str, str]]:
    """Return the number of inputs that were read, and a traceback for each place that failed."""
    failures: dict[str, str] = {}
    end = time.monotonic() + seconds
    count = 0
    while count < max_inputs and time.monotonic() < end:
        inputs.write(first + count)
        failure = find_failure(inputs.target, inputs.folder)
        if failure:
            place = find_place(failure)
            if place not in failures:
                save_regression(inputs.target, inputs.file, first + count)
            failures.setdefault(place, failure)
        count += 1
    return count, failures


def find_place(failure: str) -> str:
    """Return the last line of dumpdiff in a traceback, and the kind of error."""
    places = re.findall(r'File "[^"]*(dumpdiff/[^"]+", line \d+)', failure)
    error = failure.strip().splitlines()[-1].partition(":")[0]
    return f"{places[-1] if places else ''} {error}"


def save_regression(target: Target, file: Path, number: int) -> None:
    """Keep a failing input."""
    folder = REGRESSIONS / target.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number}{file.suffix}").write_bytes(file.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
