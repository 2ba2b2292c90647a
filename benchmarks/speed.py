"""Measure time and memory of ``dumpdiff align`` and of ``msprobe compare`` on the same files.

    python benchmarks/speed.py [--work /tmp/dumpdiff-speed] [--only calls-10k] [--repeat 3]

needs the package installed with ``.[test]``. Prints a Markdown table. The pairs are made once in
``--work``:

``calls-N``     N calls of statistics. They come from one real recording of 980 decoder layers
                (100,000 calls), whose layers are cut or repeated. The target has noise of 1e-7.
``diverged-N``  the same with a wrong output in the middle; the HTML page is written, too.
``unlinked-N``  the same as calls-N, but no op reads a value that another one wrote: no dataflow.
``tensors-G``   two dumps of G GiB of whole tensors: layer norms, 4 MiB in and 4 MiB out each,
                recorded with msprobe; the second run starts from an input disturbed by 1e-7.
``csv-N``       two files statistic.csv of N rows.
``demo``        the pair of ``make demo``. It is graph mode against eager mode, which msprobe cannot
                pair at all. Its figure is for the PyTorch side against itself: the least time that
                it takes for such a small dump.

*Floor* is the time in which a process only reads and parses the files. Wall time is that of the
whole process, start-up included; processor time counts all its threads and tells more on a machine
with other load. Memory is the peak resident size of its largest process. With ``--repeat`` the
smallest of the repeated measurements counts, because a disturbance only adds time. The files are in
the page cache when they are read: all programs are measured after the pair was made or read once.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import speed_dumps

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "fixtures"
#: The real recording of 100,000 calls; without it, the like is recorded in 25 minutes.
RECORDING = ROOT.parent / "shared" / "dumps" / "speed-calls_100k.tar.xz"
CALLS_OF_LAYER = 102
LAYERS_OF_RECORDING = 980

#: Reads all files of two folders and parses the JSON: what no comparison can be faster than.
_FLOOR = """
import pathlib, sys
import orjson
for folder in sys.argv[1:]:
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".json":
                orjson.loads(data)
"""


@dataclass(frozen=True)
class Pair:
    """Two dumps, and for each the folder of one step that msprobe can compare, if it can."""

    target: Path
    reference: Path
    msprobe_target: Path | None
    msprobe_reference: Path | None
    options: tuple[str, ...] = ()  #: of dumpdiff


@dataclass(frozen=True)
class Measurement:
    seconds: float
    processor_seconds: float
    megabytes: float
    exit_code: int


def build_calls(work: Path, n_calls: int, *, linked: bool = True, fault: bool = False) -> Pair:
    n_layers = n_calls // CALLS_OF_LAYER
    name = f"{'calls' if linked else 'unlinked'}-{n_calls}"
    reference, sound = work / f"{name}_reference", work / f"{name}_target"
    variants = {
        reference: speed_dumps.Variant(n_layers, is_linked=linked),
        sound: speed_dumps.Variant(n_layers, has_noise=True, is_linked=linked),
    }
    target, options = sound, ()
    if fault:
        target = work / f"{name}_faulty"
        variants[target] = speed_dumps.Variant(n_layers, has_noise=True, has_fault=True)
        options = ("--html", str(work / "report.html"))
    missing_variants = {folder: item for folder, item in variants.items() if not folder.exists()}
    if missing_variants:
        recording = speed_dumps.read_recording(unpack_recording(work))
        for folder, variant in missing_variants.items():
            speed_dumps.write_dump(recording, folder, variant)
    return Pair(target, reference, target / "step0", reference / "step0", options)


def unpack_recording(work: Path) -> Path:
    folder = work / "recording"
    if folder.exists():
        return folder
    if RECORDING.exists():
        with tarfile.open(RECORDING) as archive:
            archive.extractall(folder, filter="data")
    else:
        tiny = ("--layers", str(LAYERS_OF_RECORDING), "--hidden", "16", "--ffn", "24")
        run_recording("record_pytorch.py", folder, *tiny, "--task", "statistics")
    return folder


def build_tensors(work: Path, gigabytes: float) -> Pair:
    reference, target = (
        work / f"tensors-{gigabytes}_reference",
        work / f"tensors-{gigabytes}_target",
    )
    calls = ("--calls", str(round(128 * gigabytes)))
    if not target.exists():
        run_recording("../benchmarks/record_large.py", reference, *calls)
        run_recording("../benchmarks/record_large.py", target, *calls, "--noise", "1e-7")
    return Pair(target, reference, target / "step0", reference / "step0")


def build_csv(work: Path, n_rows: int) -> Pair:
    """Write statistic.csv files of a chain of ops, each with one input and one output."""
    header = (
        "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
        "Max Value,Min Value,L2Norm Value"
    )
    folders = work / f"csv-{n_rows}_target", work / f"csv-{n_rows}_reference"
    for folder, noise in zip(folders, (1e-6, 0.0), strict=True):
        if folder.exists():
            continue
        step = folder / "rank_0" / "net" / "0" / "0"
        step.mkdir(parents=True)
        with (step / "statistic.csv").open("w", newline="") as file:
            file.write(header + "\n")
            rows = csv.writer(file, lineterminator=",\n")
            for op in range(n_rows // 2):
                name = f"Default_network-Net_layers-CellList_{op // 20}-Layer_Mul-op{op}"
                for io, value in (("input", op), ("output", op + 1)):
                    high = (1 + value * 1e-3) * (1 + noise * math.sin(value))
                    numbers = [f"{number:.6g}" for number in (high, -high / 2, high * 3)]
                    place = ("Mul", name, 0, 0, 10**15 + op, io, 0, 256, "float32", "(8,8)")
                    rows.writerow((*place, *numbers))
    return Pair(*folders, None, None)


def build_demo(work: Path) -> Pair:
    for name in ("demo_mindspore", "demo_pytorch"):
        if not (work / name).exists():
            with tarfile.open(FIXTURES / "data" / f"{name}.tar.xz") as archive:
                archive.extractall(work, filter="data")
    step = work / "demo_pytorch" / "step0"
    return Pair(work / "demo_mindspore", work / "demo_pytorch", step, step)


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


CASES: dict[str, Callable[[Path], Pair]] = {
    "calls-1k": partial(build_calls, n_calls=1_020),
    "calls-10k": partial(build_calls, n_calls=10_000),
    "calls-20k": partial(build_calls, n_calls=20_000),
    "calls-100k": partial(build_calls, n_calls=100_000),
    "calls-1M": partial(build_calls, n_calls=1_000_000),
    "diverged-10k": partial(build_calls, n_calls=10_000, fault=True),
    "diverged-100k": partial(build_calls, n_calls=100_000, fault=True),
    "unlinked-10k": partial(build_calls, n_calls=10_000, linked=False),
    "unlinked-100k": partial(build_calls, n_calls=100_000, linked=False),
    "tensors-0.1": partial(build_tensors, gigabytes=0.1),
    "tensors-1": partial(build_tensors, gigabytes=1),
    "tensors-10": partial(build_tensors, gigabytes=10),
    "csv-10k": partial(build_csv, n_rows=10_000),
    "csv-100k": partial(build_csv, n_rows=100_000),
    "csv-500k": partial(build_csv, n_rows=500_000),
    "demo": build_demo,
}
#: Cases that need tens of GB on the disk, or an hour of msprobe: only if they are named.
LARGE_CASES = ("calls-1M", "tensors-10")
PROGRAMS = ("floor", "dumpdiff", "msprobe")
GROWTH_CASES = {"calls-10k": 10_000, "calls-100k": 100_000, "calls-1M": 1_000_000}


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
    processor_seconds = usage.ru_utime + usage.ru_stime
    return Measurement(seconds, processor_seconds, usage.ru_maxrss / 1024, process.returncode)


def list_commands(pair: Pair, out: Path) -> dict[str, tuple[list[str], tuple[int, ...]]]:
    """Return for each program its command line and the exit codes that mean success."""
    outputs = ["--json", str(out / "result.json"), "--csv", str(out / "pairs.csv")]
    folders = [str(pair.target), str(pair.reference)]
    align = [sys.executable, "-m", "dumpdiff", "align", *folders, *outputs, *pair.options]
    commands = {
        "floor": ([sys.executable, "-c", _FLOOR, *folders], (0,)),
        "dumpdiff": (align, (0, 1, 3)),
    }
    if pair.msprobe_target is not None:
        steps = ["-tp", str(pair.msprobe_target), "-gp", str(pair.msprobe_reference)]
        msprobe = str(Path(sys.executable).parent / "msprobe")
        commands["msprobe"] = ([msprobe, "compare", *steps, "-o", str(out / "msprobe")], (0,))
    return commands


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
        "--program", action="append", choices=PROGRAMS, help="measure this one only"
    )
    parser.add_argument("--plot", type=Path, help="draw time over calls into this file")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)

    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| pair | program | seconds | processor | peak MB | exit | msprobe / dumpdiff |")
    print("|---|---|--:|--:|--:|--:|--:|", flush=True)
    measurements: dict[str, dict[str, Measurement]] = {}
    for name in args.only or [name for name in CASES if name not in LARGE_CASES]:
        measurements[name] = measure_case(
            name, args.work, args.program or list(PROGRAMS), args.repeat
        )
    print_growth(measurements)
    if args.plot:
        plot_growth(measurements, args.plot)


def measure_case(
    name: str, work: Path, programs: Sequence[str], repeat: int
) -> dict[str, Measurement]:
    """Measure the programs on one pair, and print a row for each."""
    # in a process of its own: the peak memory of a program is at least that of who starts it
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pair = pool.submit(CASES[name], work).result()
    out = work / f"{name}_output"
    out.mkdir(exist_ok=True)
    runs: dict[str, Measurement] = {}
    for program, (command, accepted_codes) in list_commands(pair, out).items():
        if program not in programs:
            continue
        run = select_best(name, program, command, accepted_codes, out, repeat)
        runs[program] = run
        ratio = ""
        if program == "msprobe" and "dumpdiff" in runs:
            ratio = f"{run.seconds / runs['dumpdiff'].seconds:.1f}"
        times = f"{run.seconds:.2f} | {run.processor_seconds:.2f}"
        print(f"| {name} | {program} | {times} | {run.megabytes:.0f} | {run.exit_code} | {ratio} |")
        sys.stdout.flush()
    return runs


def print_growth(measurements: dict[str, dict[str, Measurement]]) -> None:
    """Print the exponent of the growth of processor time with the calls, from 10,000 on."""
    points = [
        (math.log(n_calls), math.log(measurements[name]["dumpdiff"].processor_seconds))
        for name, n_calls in GROWTH_CASES.items()
        if "dumpdiff" in measurements.get(name, {})
    ]
    if len(points) < 2:
        return
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points)
    slope /= sum((x - mean_x) ** 2 for x, _ in points)
    print(f"\nprocessor time grows with calls to the power of {slope:.2f}")


def plot_growth(measurements: dict[str, dict[str, Measurement]], file: Path) -> None:
    """Draw the time of all programs over the number of calls."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.5))
    for program in PROGRAMS:
        points = [
            (n_calls, measurements[name][program].seconds)
            for name, n_calls in {"calls-1k": 1_020, **GROWTH_CASES}.items()
            if program in measurements.get(name, {})
        ]
        if points:
            axes.loglog(*zip(*points, strict=True), marker="o", label=program)
    axes.set_xlabel("calls")
    axes.set_ylabel("seconds")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()
