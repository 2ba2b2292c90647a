"""The garbage collector is off in the body and afterwards as it was before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from dumpdiff.model.gc_pause import pause_gc


@pytest.fixture(autouse=True)
def enabled_collector() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_in_the_body_and_on_afterwards() -> None:
    with pause_gc():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(KeyError), pause_gc():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with pause_gc():
        pass
    assert not gc.isenabled()


def test_a_function_can_be_called_again() -> None:
    @pause_gc()
    def is_collecting() -> bool:
        return gc.isenabled()

    assert [is_collecting(), is_collecting()] == [False, False]
    assert gc.isenabled()
