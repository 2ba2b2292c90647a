"""A copy of the process makes a call; if it cannot, the call is made here."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from dumpdiff.model import background
from dumpdiff.model.background import Background, can_fork


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may be copied."""
    monkeypatch.setattr(background, "can_fork", lambda: True)


def divide(a: int, b: int) -> tuple[float, int]:
    return a / b, os.getpid()


def die_elsewhere(here: int) -> int:
    if os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return here


@pytest.mark.usefixtures("forking")
def test_the_call_is_made_by_another_process():
    quotient, process = Background(divide, 3, 2).get_reply()
    assert quotient == 1.5
    assert process != os.getpid()


@pytest.mark.usefixtures("forking")
def test_what_the_function_raises_is_raised():
    pending = Background(divide, 3, 0)
    with pytest.raises(ZeroDivisionError):
        pending.get_reply()


@pytest.mark.usefixtures("forking")
def test_a_process_that_the_system_ended_is_not_missed():
    assert Background(die_elsewhere, os.getpid()).get_reply() == os.getpid()


@pytest.mark.usefixtures("forking")
def test_a_reply_that_cannot_be_sent_is_computed_here():
    assert Background(lambda: lambda: 3).get_reply()() == 3


@pytest.mark.usefixtures("forking")
def test_a_process_whose_reply_nobody_wants_is_ended():
    pending = Background(bytes, 1 << 24)  # more than a pipe holds
    process = pending._process
    del pending
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_process_with_other_threads_is_not_copied(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(background, "count_cores", lambda: 2)
    is_done = threading.Event()
    thread = threading.Thread(target=is_done.wait)
    thread.start()
    try:
        assert not can_fork()
        assert Background(divide, 3, 2).get_reply() == (1.5, os.getpid())
    finally:
        is_done.set()
        thread.join()
