"""Measure whether dumpdiff tells a damaged value.

One recorded value of a sound pair of dumps is damaged at a time.

    python benchmarks/damage [--model llama] [--form tensors] [--kind sign] [--failures] [--write]
    python benchmarks/damage --model llama --form tensors --keep DIR ID

needs the package installed with ``.[test]``. Records what is missing (it shares the recordings of
benchmarks/localise), asks what changed and prints the tables; ``--write`` puts them into
docs/benchmarks.md. Held-out damages are counted, and named only with ``--held-out``. With an ID, as
``--failures`` prints it, the damaged pair is left in DIR.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "localise"), str(HERE.parents[1])]
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # two processes share the machine
    os.environ.setdefault(name, "1")

import recordings  # noqa: E402
import summary  # noqa: E402
import table  # noqa: E402
from kinds import KINDS, list_kinds  # noqa: E402
from outcomes import FORMS, measure_outcomes, measure_pair  # noqa: E402
from pairs import PAIRS, Pair  # noqa: E402

DOCUMENT = HERE.parents[1] / "docs" / "benchmarks.md"


def main() -> None:
    args = _parse_arguments()
    args.work.mkdir(parents=True, exist_ok=True)
    pairs = [pair for pair in PAIRS if not args.model or pair.model in args.model]
    requested = [recording for pair in pairs for recording in pair.recordings]
    errors = recordings.make_recordings(requested, args.work, args.processes, _report)
    for failed_recording, error in errors.items():
        print(f"not recorded: {failed_recording.name}\n{error}", file=sys.stderr)
    pairs = [pair for pair in pairs if not errors.keys() & set(pair.recordings)]
    forms = args.form or FORMS
    if args.id:
        _keep_damage(args.id, pairs, forms, args.work, args.keep)
        return
    outcomes = measure_outcomes(
        pairs, forms, args.kind or KINDS, args.work, args.processes, _report
    )
    if args.failures:
        print(summary.format_failures(outcomes, args.held_out))
        return
    text = summary.format_document(outcomes)
    print(text)
    if args.write:
        table.write_section(DOCUMENT, "damage", text)


def _keep_damage(id: str, pairs: list[Pair], forms: list[str], work: Path, keep: Path) -> None:
    """Repeat one damage, print what was answered, and leave the damaged dumps in ``keep``."""
    for pair in pairs:
        for form in forms:
            kinds = list_kinds(whole=form == "tensors")
            for outcome in measure_pair(pair, form, kinds, work, only=id, keep=keep):
                if outcome.id == id:
                    level = outcome.level
                    if outcome.verified_level:
                        level += f", with --verify {outcome.verified_level}"
                    print(f"{level}: {outcome.name}", *outcome.lines, sep="\n    ")
                    print(f"dumpdiff align {keep / 'target'} {keep / 'reference'}")
                    return
    print(f"no damage {id} of these models and forms", file=sys.stderr)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    models = list(dict.fromkeys(pair.model for pair in PAIRS))
    parser.add_argument("id", nargs="?", help="repeat this damage only")
    parser.add_argument(
        "--work", type=Path, default=Path("/tmp/dumpdiff-localise"), help="recordings and answers"
    )
    parser.add_argument("--model", action="append", choices=models, help="may be repeated")
    parser.add_argument("--form", action="append", choices=FORMS, help="may be repeated")
    parser.add_argument("--kind", action="append", choices=KINDS, help="may be repeated")
    parser.add_argument(
        "--failures", action="store_true", help="print the damages that the terminal does not tell"
    )
    parser.add_argument("--held-out", action="store_true", help="name held-out damages, too")
    parser.add_argument(
        "--keep", type=Path, default=Path("/tmp/dumpdiff-damage"), help="folder for the pair of ID"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help=f"put the tables into docs/{DOCUMENT.name}"
    )
    return parser.parse_args()


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
