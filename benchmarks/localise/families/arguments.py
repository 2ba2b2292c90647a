"""The command line of both recording scripts."""

from __future__ import annotations

import argparse

import families


def parse_arguments(description: str) -> argparse.Namespace:
    """Parse the command line; exit if the model has no such fault."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("out", help="folder to make; the dump goes into it")
    parser.add_argument("--model", choices=families.NAMES, required=True)
    parser.add_argument("--fault", default="none", help="of the model")
    parser.add_argument(
        "--variant", default="", help="another way to write the model down, as its net knows it"
    )
    parser.add_argument(
        "--optimizer",
        action="store_true",
        help="also run one step of the model's optimizer, in graph mode and in PyTorch",
    )
    args = parser.parse_args()
    known_faults = families.get_faults(args.model).FAULTS
    if args.fault not in {"none", *known_faults}:
        parser.error(f"no fault {args.fault!r}; there are: {', '.join(known_faults)}")
    return args
