"""Compare two runs of 64 ranks with 20,000 calls each: wall time, memory, answer.

``python benchmarks/ranks.py FOLDER [--ranks 64] [--calls 20000] [--jobs 2]`` cuts the speed dump
(statistics of 100,000 calls, ``shared/dumps/speed-calls_100k.tar.xz``, unpacked in FOLDER or given
by --source) to its first calls, writes a copy for each rank of either run with relative noise of
float32, and multiplies the output of one call of one rank by 1.01. The wall time is held against
that of one rank alone: at most 1.15 x ranks x one / jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOISE = 2e-7  #: relative: that of two correct runs in float32
FACTOR = 1.01  #: of the faulty output
ALLOWED_OVERHEAD = 1.15  #: wall time against that of the ranks one after the other on all cores
ALLOWED_MEMORY = 500  #: MB of the main process
_STATISTICS = ("Max", "Min", "Mean", "Norm")


def main() -> None:
    """Write the dumps, compare them, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, help="folder of the unpacked speed dump")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--scheduler", help="address of a Dask scheduler")
    arguments = parser.parse_args()
    source = arguments.source or arguments.folder
    faulty_rank = arguments.ranks * 2 // 3
    runs = [arguments.folder / name for name in ("target", "reference")]
    if not all(run.exists() for run in runs):
        write_runs(next(source.rglob("dump.json")).parent, runs, arguments, faulty_rank)
    one_rank = measure_command(runs, "--rank", "0", "-q")
    jobs = ["--scheduler", arguments.scheduler] if arguments.scheduler else []
    all_ranks = measure_command(runs, "-j", str(arguments.jobs), *jobs, "-q")
    ratio = all_ranks.wall / (arguments.ranks * one_rank.wall / arguments.jobs)
    print(one_rank.text.strip())
    print(all_ranks.text.strip())
    print(f"one rank {one_rank.wall:.1f} s; {arguments.ranks} ranks {all_ranks.wall:.1f} s", end="")
    print(f" with {arguments.jobs} processes: {ratio:.2f} of the time of the ranks alone,", end="")
    print(f" main process {all_ranks.memory:.0f} MB")
    share = all_ranks.processor / (arguments.ranks * one_rank.processor)
    print(f"processor time: {share:.2f} of that of the ranks alone")
    is_right = f"rank {faulty_rank}" in all_ranks.text
    if not is_right or ratio > ALLOWED_OVERHEAD or all_ranks.memory > ALLOWED_MEMORY:
        sys.exit("wrong answer, too slow, or too much memory")


class Measurement:
    """What a command printed, its wall time and processor time, and its memory in MB."""

    def __init__(self, command: list[str]) -> None:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.text = process.stdout.read() if process.stdout else ""
        _, _, usage = os.wait4(process.pid, 0)
        self.wall = time.perf_counter() - start
        self.processor = usage.ru_utime + usage.ru_stime  #: seconds, also of its processes
        self.memory = usage.ru_maxrss / 1024


def measure_command(runs: list[Path], *options: str) -> Measurement:
    """Run ``dumpdiff align`` on both runs."""
    return Measurement([sys.executable, "-m", "dumpdiff", "align", *map(str, runs), *options])


def write_runs(source: Path, runs: list[Path], arguments: Any, faulty_rank: int) -> None:
    """Write both runs; the target's faulty rank has one wrong output in its middle."""
    entries = json.loads((source / "dump.json").read_text())
    names = list(entries["data"])[: arguments.calls]
    side_files = {}
    construct = json.loads((source / "construct.json").read_text())
    side_files["construct.json"] = json.dumps({name: construct.get(name) for name in names})
    kept_names = set(names)
    stacks = {}
    for key, (calls, frames) in json.loads((source / "stack.json").read_text()).items():
        kept_calls = [call for call in calls if call in kept_names]
        if kept_calls:
            stacks[key] = [kept_calls, frames]
    side_files["stack.json"] = json.dumps(stacks)
    for run_number, run in enumerate(runs):
        for rank in range(arguments.ranks):
            folder = run / "step0" / f"rank{rank}"
            folder.mkdir(parents=True)
            generator = random.Random(1000 * run_number + rank)
            data = {name: entries["data"][name] for name in names}
            data = add_noise(data, generator)
            if run_number == 0 and rank == faulty_rank:
                scale_later_values(data, find_fault(names))
            header = {key: value for key, value in entries.items() if key != "data"}
            (folder / "dump.json").write_text(json.dumps({**header, "data": data}))
            for name, text in side_files.items():
                (folder / name).write_text(text)


def find_fault(names: list[str]) -> str:
    """Return the first linear layer after the middle of the calls."""
    for name in names[len(names) // 4 :]:
        if name.startswith("Functional.linear") and name.endswith("forward"):
            return name
    raise SystemExit("the cut dump has no linear layer")


def add_noise(data: dict[str, Any], generator: random.Random) -> dict[str, Any]:
    """Return the entries with noise that is the same for the same numbers."""
    noisy: dict[tuple[float, ...], dict[str, float]] = {}
    copy = json.loads(json.dumps(data))
    for record in list_records(copy):
        key = tuple(record.get(name) for name in _STATISTICS)
        if not all(isinstance(value, float) for value in key):
            continue
        if key not in noisy:
            noisy[key] = {
                name: value * (1 + NOISE * generator.gauss(0, 1))
                for name, value in zip(_STATISTICS, key, strict=True)
            }
        record.update(noisy[key])
    return copy


def list_records(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every record of a tensor in nested entries."""
    if isinstance(value, dict):
        if "Norm" in value:
            yield value
        else:
            for item in value.values():
                yield from list_records(item)
    elif isinstance(value, list):
        for item in value:
            yield from list_records(item)


def scale_later_values(data: dict[str, Any], fault: str) -> None:
    """Multiply every value that the faulty call or a later one computes; weights stay."""
    earlier_values: set[tuple[Any, ...]] = set()
    results: set[tuple[Any, ...]] = set()
    is_after = False
    for name, entry in data.items():
        if name == fault:
            is_after = True
            earlier_values |= {get_key(record) for record in list_records(entry["input_args"])}
        found = entry.get("output", []) if is_after else entry
        (results if is_after else earlier_values).update(map(get_key, list_records(found)))
    changed_values = results - earlier_values
    for record in list_records(data):
        if get_key(record) in changed_values and "float" in record["dtype"]:
            for statistic in _STATISTICS:
                record[statistic] *= FACTOR


def get_key(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the statistics of a tensor."""
    return tuple(record.get(name) for name in _STATISTICS)


if __name__ == "__main__":
    main()
