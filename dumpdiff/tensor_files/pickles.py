"""Read the pickle of a ``torch.save`` file as data, without unpickling it.

The pickle is only disassembled (:func:`pickletools.genops` executes nothing). Containers and
constants are returned as they are, a class or function as its :class:`Global` name, and a call that
unpickling would make as a :class:`PickledCall` with the function and its arguments. Opcodes:
https://github.com/python/cpython/blob/main/Lib/pickletools.py
"""

from __future__ import annotations

import pickletools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Global(str):
    """'module name' of a class or function that the pickle refers to; it is never imported."""

    __slots__ = ()


class Persistent(NamedTuple):
    """A reference to an object outside the pickle, such as a storage."""

    reference: Any


@dataclass(eq=False)
class PickledCall:
    """An object that unpickling would create by a call, and what it would add to it afterwards."""

    function: Any
    arguments: tuple[Any, ...]
    items: dict[Any, Any] = field(default_factory=dict)  #: items added to a mapping
    state: Any = None  #: state of an object, usually its attributes


class UnknownPickle(Exception):
    """A pickle that is damaged, or uses opcodes that tensors and plain data do not need."""


def get_mapping_items(value: Any) -> Mapping[Any, Any] | None:
    """Return the items of a dict, OrderedDict or defaultdict; None for anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, PickledCall) and value.function in _MAPPING_CLASSES:
        return value.items
    return None


_MAPPING_CLASSES = (Global("collections OrderedDict"), Global("collections defaultdict"))
_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
#: Opcodes that push their argument as it is.
_PUSH_OPCODES = frozenset({
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE", "BININT", "BININT1", "BININT2",
    "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "BYTEARRAY8", "STRING", "BINSTRING", "SHORT_BINSTRING",
})  # fmt: skip


def disassemble(pickled: bytes) -> Any:  # noqa: PLR0912, PLR0915  one branch for each opcode
    """Return the value that a pickle describes. Raises UnknownPickle."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            name = opcode.name
            if name in _PUSH_OPCODES:
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
                    stack.append(tuple(_pop_marked_items(stack)))
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    count = int(name[-1])
                    stack[-count:] = [tuple(stack[-count:])]
                case "LIST" | "FROZENSET":
                    stack.append(_pop_marked_items(stack))
                case "DICT":
                    items = _pop_marked_items(stack)
                    stack.append(dict(zip(items[::2], items[1::2], strict=True)))
                case "APPEND":
                    last = stack.pop()
                    stack[-1].append(last)
                case "APPENDS" | "ADDITEMS":
                    items = _pop_marked_items(stack)
                    stack[-1].extend(items)
                case "SETITEM":
                    item = stack.pop()
                    key = stack.pop()
                    _get_item_dict(stack[-1])[key] = item
                case "SETITEMS":
                    items = _pop_marked_items(stack)
                    _get_item_dict(stack[-1]).update(zip(items[::2], items[1::2], strict=True))
                case "BINPERSID":
                    stack[-1] = Persistent(stack[-1])
                case "REDUCE" | "NEWOBJ":
                    arguments = stack.pop()
                    stack[-1] = PickledCall(stack[-1], tuple(arguments))
                case "NEWOBJ_EX":
                    stack.pop()  # keyword arguments: no class that is understood here has any
                    arguments = stack.pop()
                    stack[-1] = PickledCall(stack[-1], tuple(arguments))
                case "BUILD":
                    state = stack.pop()
                    if isinstance(stack[-1], PickledCall):
                        stack[-1].state = state
                case _:
                    raise UnknownPickle(f"its pickle uses {name}")
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnknownPickle(f"its pickle is damaged ({error})") from None
    raise UnknownPickle("its pickle is cut short")


def _get_item_dict(value: Any) -> dict[Any, Any]:
    if isinstance(value, PickledCall):
        return value.items
    if isinstance(value, dict):
        return value
    raise ValueError("items of an object that is not a mapping")


def _pop_marked_items(stack: list[Any]) -> list[Any]:
    """Remove and return the items above the last mark; the mark is removed too."""
    for index in range(len(stack) - 1, -1, -1):
        if stack[index] is _MARK:
            items = stack[index + 1 :]
            del stack[index:]
            return items
    raise ValueError("no mark")
