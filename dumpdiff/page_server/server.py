"""A server of this machine only: no other machine can reach it."""

from __future__ import annotations

import logging
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass

from ..model.errors import DumpError
from .application import Application, ServedResult

_HOST = "127.0.0.1"
_TOKEN_BYTES = 16  #: a token that cannot be guessed


@dataclass(frozen=True)
class ListeningServer:
    """A server that has its port and answers once :attr:`run` is called."""

    address: str  #: with the token
    run: Callable[[], None]  #: returns after :attr:`stop`, or by KeyboardInterrupt
    stop: Callable[[], None]


def listen(served: ServedResult, port: int) -> ListeningServer:
    """Take a port of this machine, a free one for 0. Raises DumpError if it is taken."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line for each request
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    application = Application(served, token)
    try:
        listener = socket.create_server((_HOST, port))
    except OSError as error:
        raise DumpError(
            f"port {port}: cannot be used ({error.strerror}); choose another one with --port"
        ) from error
    with listener:  # the server duplicates it
        port = listener.getsockname()[1]
        server = make_server(_HOST, port, application, threaded=True, fd=listener.fileno())
    address = f"http://{_HOST}:{port}/{token}/"
    return ListeningServer(address, server.serve_forever, server.shutdown)
