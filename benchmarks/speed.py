"""Measure time and memory of ``dumpdiff align`` and of ``msprobe compare`` on the same files.

    python benchmarks/speed.py [--work /tmp/dumpdiff-speed] [--only statistics] [--repeat 3]

needs the package installed with ``.[test]``. Prints a Markdown table. The pairs are made once in
``--work`` (2.5 GB):

``statistics``  20,000 calls of statistics: a narrow model of 196 layers, recorded with msprobe (two
                minutes), against the same with rounding noise of 1e-7.
``tensors``     two dumps of 1 GiB of whole tensors: 128 layer norms, 4 MiB in and 4 MiB out each,
                recorded with msprobe; the second run starts from an input disturbed by 1e-7.
``demo``        the pair of ``make demo``. It is graph mode against eager mode, which msprobe cannot
                pair at all. Its figure is for the PyTorch side against itself: the least time that
                it takes for such a small dump.

Time is the wall time of the whole process, start-up included. Memory is the peak resident size of
its largest process. With ``--repeat`` the smallest of the repeated measurements counts, because a
disturbance only adds time. The files are in the page cache when they are read: both programs are
measured after the pair was made or read once.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
sys.path.insert(0, str(FIXTURES))

import synthesise  # noqa: E402  (a script in fixtures, not a package)


@dataclass(frozen=True)
class Pair:
    """Two dumps, and for each the folder of one step that msprobe can compare."""

    target: Path
    reference: Path
    msprobe_target: Path
    msprobe_reference: Path


@dataclass(frozen=True)
class Measurement:
    seconds: float
    megabytes: float
    exit_code: int


def build_statistics(work: Path) -> Pair:
    reference, target = work / "statistics_reference", work / "statistics_target"
    if not target.exists():
        tiny = ("--layers", "196", "--hidden", "16", "--ffn", "24")
        run_recording("record_pytorch.py", reference, *tiny, "--task", "statistics")
        synthesise.save(synthesise.noisy(synthesise.load(reference)), target)
    return build_pair(target, reference)


def build_tensors(work: Path) -> Pair:
    reference, target = work / "tensors_reference", work / "tensors_target"
    if not target.exists():
        run_recording("../benchmarks/record_large.py", reference)
        run_recording("../benchmarks/record_large.py", target, "--noise", "1e-7")
    return build_pair(target, reference)


def build_demo(work: Path) -> Pair:
    for name in ("demo_mindspore", "demo_pytorch"):
        if not (work / name).exists():
            with tarfile.open(FIXTURES / "data" / f"{name}.tar.xz") as archive:
                archive.extractall(work, filter="data")
    step = work / "demo_pytorch" / "step0"
    return Pair(work / "demo_mindspore", work / "demo_pytorch", step, step)


CASES: dict[str, Callable[[Path], Pair]] = {
    "statistics": build_statistics,
    "tensors": build_tensors,
    "demo": build_demo,
}


def run_recording(script: str, out: Path, *options: str) -> None:
    """Run a recording script in a separate process; show its output only if it fails."""
    run = subprocess.run(
        [sys.executable, str(FIXTURES / script), str(out), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SystemExit(f"{script} failed:\n{run.stdout}\n{run.stderr}")


def measure(command: Sequence[str], log: Path) -> Measurement:
    """Run a command and write its output to a file.

    Bytecode caching stays on, as for an installed program.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    with log.open("wb") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    return Measurement(seconds, usage.ru_maxrss / 1024, process.returncode)


def list_commands(pair: Pair, out: Path) -> dict[str, tuple[list[str], tuple[int, ...]]]:
    """Return for each program its command line and the exit codes that mean success."""
    scripts_folder = Path(sys.executable).parent
    align = [str(scripts_folder / "dumpdiff"), "align", str(pair.target), str(pair.reference)]
    compare = [
        str(scripts_folder / "msprobe"),
        "compare",
        "-tp",
        str(pair.msprobe_target),
        "-gp",
        str(pair.msprobe_reference),
    ]
    return {
        "dumpdiff": (
            [*align, "--json", str(out / "result.json"), "--csv", str(out / "pairs.csv")],
            (0, 1, 3),
        ),
        "msprobe": ([*compare, "-o", str(out / "msprobe")], (0,)),
    }


def select_best(
    name: str,
    program: str,
    command: list[str],
    accepted_codes: tuple[int, ...],
    out: Path,
    repeat: int,
) -> Measurement:
    """Return the quickest of several runs; raise SystemExit if one fails."""
    runs = []
    for _ in range(repeat):
        run = measure(command, out / f"{program}.log")
        if run.exit_code not in accepted_codes:
            raise SystemExit(
                f"{name}: {program} ended with {run.exit_code}, see {out / f'{program}.log'}"
            )
        runs.append(run)
    return min(runs, key=lambda run: run.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/dumpdiff-speed"), help="where the pairs are made"
    )
    parser.add_argument(
        "--only", action="append", choices=list(CASES), help="run this case only; may be repeated"
    )
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument(
        "--program", action="append", choices=["dumpdiff", "msprobe"], help="measure this one only"
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)

    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print(
        "| pair | program | seconds | peak MB | exit | msprobe / dumpdiff "
        "|\n|---|---|--:|--:|--:|--:|",
        flush=True,
    )
    for name in args.only or CASES:
        pair = CASES[name](args.work)
        out = args.work / f"{name}_output"
        out.mkdir(exist_ok=True)
        seconds = {}
        for program, (command, accepted_codes) in list_commands(pair, out).items():
            if program in (args.program or (program,)):
                run = select_best(name, program, command, accepted_codes, out, args.repeat)
                seconds[program] = run.seconds
                ratio = (
                    f"{run.seconds / seconds['dumpdiff']:.1f}"
                    if {"dumpdiff", "msprobe"} <= set(seconds)
                    else ""
                )
                figures = f"{run.seconds:.2f} | {run.megabytes:.0f} | {run.exit_code} | {ratio}"
                print(f"| {name} | {program} | {figures} |", flush=True)


def build_pair(target: Path, reference: Path) -> Pair:
    return Pair(target, reference, target / "step0", reference / "step0")


if __name__ == "__main__":
    main()
