"""Pickles read as data: what a file of ``torch.save`` says, without unpickling it.

The pickle is only disassembled (:func:`pickletools.genops` executes nothing). Containers and constants come out as
they are, a class or function as its :class:`Global` name, and what unpickling would call as a :class:`Called` that
says what with what. Opcodes: https://github.com/python/cpython/blob/main/Lib/pickletools.py
"""

from __future__ import annotations

import pickletools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Global(str):
    """'module name' of a class or function that the pickle means; never imported."""

    __slots__ = ()


class Persistent(NamedTuple):
    """A reference to something outside of the pickle, such as a storage."""

    reference: Any


@dataclass(eq=False)
class Called:
    """What unpickling would make by a call: of what, with which arguments, and what it would fill in afterwards."""

    what: Any
    arguments: tuple[Any, ...]
    items: dict[Any, Any] = field(default_factory=dict)  #: of a mapping
    state: Any = None  #: of an object: usually its attributes


class UnknownPickle(Exception):
    """A pickle that uses what tensors and plain data do not need, or that is damaged."""


def mapping_of(value: Any) -> Mapping[Any, Any] | None:
    """The items of a dict or of an instance of a class of dict (OrderedDict); None of anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, Called) and value.what in _MAPPINGS:
        return value.items
    return None


_MAPPINGS = (Global("collections OrderedDict"), Global("collections defaultdict"))
_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENTS = frozenset({
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1",
    "LONG4", "FLOAT", "BINFLOAT", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "STRING", "BINSTRING",
    "SHORT_BINSTRING",
})  # fmt: skip


def disassemble(pickled: bytes) -> Any:  # noqa: PLR0912, PLR0915  one branch for each opcode
    """The value that a pickle describes. Raises UnknownPickle."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            name = opcode.name
            if name in _ARGUMENTS:
                stack.append(argument)
                continue
            match name:
                case "PROTO" | "FRAME":
                    pass
                case "STOP":
                    (value,) = stack
                    return value
                case "MARK":
                    stack.append(_MARK)
                case "GLOBAL":
                    stack.append(Global(argument))
                case "STACK_GLOBAL":
                    stack[-2:] = [Global(f"{stack[-2]} {stack[-1]}")]
                case "NONE" | "NEWTRUE" | "NEWFALSE":
                    stack.append(_CONSTANTS[name])
                case "EMPTY_TUPLE":
                    stack.append(())
                case "EMPTY_LIST" | "EMPTY_SET":
                    stack.append([])
                case "EMPTY_DICT":
                    stack.append({})
                case "BINPUT" | "LONG_BINPUT" | "PUT":
                    memo[argument] = stack[-1]
                case "MEMOIZE":
                    memo[len(memo)] = stack[-1]
                case "BINGET" | "LONG_BINGET" | "GET":
                    stack.append(memo[argument])
                case "TUPLE":
                    stack.append(tuple(_popped(stack)))
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    count = int(name[-1])
                    stack[-count:] = [tuple(stack[-count:])]
                case "LIST" | "FROZENSET":
                    stack.append(_popped(stack))
                case "DICT":
                    items = _popped(stack)
                    stack.append(dict(zip(items[::2], items[1::2], strict=True)))
                case "APPEND":
                    last = stack.pop()
                    stack[-1].append(last)
                case "APPENDS" | "ADDITEMS":
                    items = _popped(stack)
                    stack[-1].extend(items)
                case "SETITEM":
                    item = stack.pop()
                    key = stack.pop()
                    _filled(stack[-1])[key] = item
                case "SETITEMS":
                    items = _popped(stack)
                    _filled(stack[-1]).update(zip(items[::2], items[1::2], strict=True))
                case "BINPERSID":
                    stack[-1] = Persistent(stack[-1])
                case "REDUCE" | "NEWOBJ":
                    given = stack.pop()
                    stack[-1] = Called(stack[-1], tuple(given))
                case "NEWOBJ_EX":
                    stack.pop()  # keyword arguments: no class that is understood here has any
                    given = stack.pop()
                    stack[-1] = Called(stack[-1], tuple(given))
                case "BUILD":
                    state = stack.pop()
                    if isinstance(
                        stack[-1], Called
                    ):  # else the state of a constant, which has none
                        stack[-1].state = state
                case other:
                    raise UnknownPickle(f"its pickle uses {other}")
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnknownPickle(f"its pickle is damaged ({error})") from None
    raise UnknownPickle("its pickle is cut short")


def _filled(value: Any) -> dict[Any, Any]:
    if isinstance(value, Called):
        return value.items
    if isinstance(value, dict):
        return value
    raise ValueError("items for what is no mapping")


def _popped(stack: list[Any]) -> list[Any]:
    """What stands above the last mark, taken off the stack with it."""
    for index in range(len(stack) - 1, -1, -1):
        if stack[index] is _MARK:
            items = stack[index + 1 :]
            del stack[index:]
            return items
    raise ValueError("no mark")
