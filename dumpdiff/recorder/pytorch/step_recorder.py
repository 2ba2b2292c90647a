"""Record one step: operators, modules, gradients and updates of parameters, as they happen."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...model.trace import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER
from ..call_sites import NOWHERE, CallSite, find_call_site
from ..options import RecordOptions
from ..recording import Recording
from .tensors import TensorIndex

if TYPE_CHECKING:
    import torch

#: Operators whose result is memory as it was found.
_UNINITIALIZED = ("empty", "new_empty")
#: Namespaces of operators that compute nothing of the model.
_BOOKKEEPING = ("profiler", "prim", "rngprims")
#: Frames between an operator and the function of autograd that makes the first gradient.
_MAX_SEED_FRAMES = 8
_FUNCTIONAL_COLLECTIVES = ("_c10d_functional", "c10d_functional")
_COLLECTIVES = ("c10d", *_FUNCTIONAL_COLLECTIVES)
#: From one rank to another. To wait for one of them can keep the other from beginning.
_POINT_TO_POINT = ("send", "recv_", "recv_any_source_")


@dataclass
class _ModuleCall:
    """A module call that has begun: its name, and the calls in it so far."""

    name: str
    calls: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)


@dataclass
class StepRecorder:
    """The recording of one step, while it runs."""

    recording: Recording
    index: TensorIndex
    module_names: Mapping[int, str]  #: id of a module -> its name in the model
    options: RecordOptions
    _modules: list[_ModuleCall] = field(default_factory=list)
    #: sequence number of an autograd node -> module and lines of the operator that made it
    _origins: dict[int, tuple[str, CallSite]] = field(default_factory=dict)
    _gradients: dict[str, int] = field(default_factory=dict)  #: parameter -> its latest gradient
    _has_backward: bool = False
    _in_optimizer: bool = False

    def run_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, record it, and return its result."""
        namespace, name = func._schema.name.split("::")
        if namespace in _BOOKKEEPING or self._in_optimizer:
            return self._run_unrecorded(func, args, kwargs)
        phase, module, site, is_recomputed = self._find_place(namespace)
        if name == "ones_like" and _is_gradient_seed():
            phase = BACKWARD
        if not self._is_chosen(module):
            return self._run_unrecorded(func, args, kwargs)
        arguments = dict(_iterate_arguments(args, kwargs))
        written = _list_written(func, namespace, args, kwargs)
        overwritten = _list_overwritten(func, namespace, name)
        inputs = {
            slot: self._add_input(value)
            for slot, value in arguments.items()
            if slot.partition(".")[0] not in overwritten
        }
        result = func(*args, **kwargs)
        if namespace in _COLLECTIVES and name not in _POINT_TO_POINT:
            _wait_for(namespace, result)
        for tensor in written:
            self.index.forget(tensor)
        if name.startswith(_UNINITIALIZED) or name in _POINT_TO_POINT:
            return result
        tensors = [*_iterate_tensors(result)] or written
        if namespace == "c10d":
            tensors = written
        if tensors and (written or any(self.index.find(tensor) < 0 for tensor in tensors)):
            outputs = [self._add_value(tensor) for tensor in tensors]
            self._add_call(
                name=f"Aten.{name}.{len(self.recording.calls)}",
                kind=f"Aten.{name}" if namespace == "aten" else f"{namespace}.{name}",
                phase=phase,
                module=module,
                recomputed=is_recomputed or None,
                site=site,
                inputs=inputs,
                outputs=outputs,
            )
        return result

    def begin_module(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        """Note that a module call begins."""
        call = _ModuleCall(self.module_names.get(id(module), ""))
        if self._is_chosen(call.name):
            call.inputs = [self._add_value(tensor) for tensor in _iterate_tensors(args)]
        self._modules.append(call)

    def end_module(self, module: torch.nn.Module, result: Any) -> None:
        """Record a module call that has ended."""
        if not self._modules:
            return  # it began before the recording did
        call = self._modules.pop()
        if not self._is_chosen(call.name):
            return
        kind = type(module).__name__
        number = self.recording.add_call(
            name=f"Module.{call.name or kind}.{kind}.forward.{len(self.recording.calls)}",
            kind=f"Module.{kind}",
            level="module",
            module=call.name,
            phase=FORWARD,
            recomputed=True if self._is_in_backward() else None,
            inputs=call.inputs,
            outputs=[self._add_value(tensor) for tensor in _iterate_tensors(result)],
        )
        for inner_call in call.calls:
            self.recording.calls[inner_call]["parent"] = number
        if self._modules:
            self._modules[-1].calls.append(number)

    def add_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Note that a tensor is the gradient of a parameter so far."""
        self._has_backward = True
        local = get_local(gradient)
        is_new = self.index.find(local) < 0
        self._gradients[name] = self.index.add(local)
        if is_new:
            self.recording.add_gradient_call(name, self._gradients[name])

    def begin_update(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Note that an optimizer begins; its own operators are not recorded."""
        for name, parameter in parameters.items():
            if name not in self._gradients and parameter.grad is not None:
                self.add_gradient(name, parameter.grad)
        self._in_optimizer = True

    def end_update(self, kind: str, parameters: Mapping[str, torch.Tensor]) -> None:
        """Record what an optimizer made of its parameters, one call for each."""
        self._in_optimizer = False
        for name, parameter in parameters.items():
            if name not in self._gradients or not self._is_chosen(name):
                continue
            local = get_local(parameter)
            old_number = self.index.find(local)
            self.index.forget(local)
            new_number = self.index.add(local)
            self.recording.tensors[new_number].pop("parameter", None)
            self.recording.tensors[new_number]["update_of"] = name
            old_numbers = [old_number] if old_number >= 0 else []
            self.recording.add_call(
                name=f"Optimizer.{kind}.{name}",
                kind=f"Optimizer.{kind}",
                phase=OPTIMIZER,
                inputs=[*old_numbers, self._gradients[name]],
                outputs=[new_number],
            )

    def finish(self) -> Recording:
        """Return the complete recording."""
        self.index.fetch()
        for name, number in self._gradients.items():
            self.recording.tensors[number]["gradient_of"] = name
        return self.recording

    def _run_unrecorded(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = _list_written(func, func.namespace, args, kwargs)
        result = func(*args, **kwargs)
        for tensor in written:
            self.index.forget(tensor)
        return result

    def _is_chosen(self, module: str) -> bool:
        return self.options.is_chosen_module(module)

    def _find_place(self, namespace: str) -> tuple[str, str, CallSite, bool]:
        """Return phase, module, the user's lines and whether a forward operator runs again.

        An operator of the backward pass has the module and lines of the forward operator whose
        gradient it computes.
        """
        import torch

        module = self._modules[-1].name if self._modules else ""
        if self._is_in_backward():
            self._has_backward = True
            if torch.is_grad_enabled():
                return FORWARD, module, find_call_site(), True
            node = torch._C._current_autograd_node()
            sequence_number = -1 if node is None else node._sequence_nr()
            module, site = self._origins.get(sequence_number, (module, NOWHERE))
            return (COMMUNICATION if namespace in _COLLECTIVES else BACKWARD), module, site, False
        site = find_call_site()
        next_number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        self._origins.setdefault(next_number - 1, (module, site))
        phase = FORWARD
        if namespace in _COLLECTIVES:
            phase = COMMUNICATION
        elif self._has_backward and not self._modules:
            phase = OPTIMIZER  # norms and clipping of gradients
        return phase, module, site, False

    def _is_in_backward(self) -> bool:
        import torch

        return bool(torch._C._current_graph_task_id() >= 0)

    def _add_call(self, **call: Any) -> None:
        number = self.recording.add_call(**call)
        if self._modules:
            self._modules[-1].calls.append(number)

    def _add_input(self, value: Any) -> int:
        """Return the number of an input: a tensor, or a Python scalar."""
        import torch

        if isinstance(value, torch.Tensor):
            return self._add_value(value)
        number = self.recording.add_tensor(type(value).__name__, ())
        self.recording.tensors[number]["value"] = value
        return number

    def _add_value(self, tensor: torch.Tensor) -> int:
        return self.index.add(get_local(tensor))


def _is_gradient_seed() -> bool:
    """Return whether autograd runs the operator: it makes the gradient of the loss itself."""
    frame = sys._getframe(1)
    for _ in range(_MAX_SEED_FRAMES):
        if frame.f_code.co_name == "_make_grads":
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _iterate_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (slot, tensor or number) of the arguments of an operator, lists of tensors too."""
    import torch

    for key, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, torch.Tensor):
            if _has_memory(value):
                yield str(key), value
        elif isinstance(value, bool | int | float):
            yield str(key), value
        elif isinstance(value, list | tuple):
            for position, item in enumerate(value):
                if isinstance(item, torch.Tensor) and _has_memory(item):
                    yield f"{key}.{position}", item


def _iterate_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, in order, at any depth of tuples, lists and dicts."""
    import torch

    if isinstance(value, torch.Tensor):
        if _has_memory(value):
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _iterate_tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iterate_tensors(item)


def _list_written(
    func: Any, namespace: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """Return the tensors among the arguments that an operator writes to."""
    if namespace == "c10d":  # their schemas do not say it
        outputs = _find_collective_outputs(func)
        return [*_iterate_tensors([args[position] for position in outputs] or args)]
    if not func._schema.is_mutable:
        return []
    tensors: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        tensors += _iterate_tensors(value)
    return tensors


def _list_overwritten(func: Any, namespace: str, name: str) -> set[str]:
    """Return the slots of arguments that an operator writes without reading them."""
    if namespace == "c10d":
        return {str(position) for position in _find_collective_outputs(func)}
    is_overwriting = name in ("copy_", "zero_", "fill_", "normal_", "uniform_", "random_")
    return {"0"} if is_overwriting else set()


def _find_collective_outputs(func: Any) -> list[int]:
    """Return the places of the arguments that a collective fills; none if it works in place."""
    return [
        position
        for position, argument in enumerate(func._schema.arguments)
        if argument.name.startswith("output")
    ]


def _wait_for(namespace: str, result: Any) -> None:
    """Wait until a collective has written its result; before, its memory has no content."""
    import torch

    if namespace in _FUNCTIONAL_COLLECTIVES:
        for tensor in _iterate_tensors(result):
            torch.ops._c10d_functional.wait_tensor(get_local(tensor))
        return
    for value in result if isinstance(result, list | tuple) else (result,):
        if isinstance(value, torch.ScriptObject) and hasattr(value, "wait"):
            value.wait()


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has elements in memory of its own: not sparse, not on 'meta'."""
    import torch

    return tensor.layout == torch.strided and tensor.device.type != "meta"


def get_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a distributed tensor that is on this rank, when it has arrived."""
    local: Any = getattr(tensor, "_local_tensor", tensor)
    if hasattr(local, "trigger_wait"):  # the result of a collective that may still run
        local = local.trigger_wait()
    result: torch.Tensor = local
    return result
