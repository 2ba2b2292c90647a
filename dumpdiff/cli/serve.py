"""``dumpdiff serve RESULT``: parse, call :func:`dumpdiff.serve`, print the address."""

from __future__ import annotations

import click

from ..reports.language import translate, use_chosen_language
from . import options

_EPILOG = """\b
Exit codes:
  0  interrupted by Ctrl-C
  2  wrong usage, or input that cannot be used

\b
Examples:
  dumpdiff align ms_dump/ pt_dump/ -o result/
  dumpdiff serve result/
  dumpdiff serve result/ --port 8765 --target /mnt/ms_dump

Only this machine can reach the server. From another one: ssh -L 8765:127.0.0.1:8765 HOST
"""


@click.command(epilog=_EPILOG, context_settings=options.CONTEXT)
@click.argument("result")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port to listen on.  [default: a free one]",
)
@options.moved_target
@options.moved_reference
@options.language
def serve(result: str, port: int, target: str | None, reference: str | None) -> None:
    """Serve the report with the values of every pair to a browser on this machine.

    RESULT is the folder that 'dumpdiff align -o' wrote. The dumps are read again when the first
    pair is opened. The address holds a secret token; Ctrl-C ends the server.
    """
    import dumpdiff

    def print_address(address: str) -> None:
        with use_chosen_language():
            message = translate(
                "serving {result} at {address} (Ctrl-C ends)", result=result, address=address
            )
        click.echo(message)

    try:
        dumpdiff.serve(result, port=port, target=target, reference=reference, ready=print_address)
    except KeyboardInterrupt:
        click.echo()
