"""Record chosen steps of a MindSpore program in PyNative mode.

``mindspore.MsDispatchMode`` (MindSpore 2.10 or later) shows the operators of the forward and the
backward pass. Some gradients are computed inside the framework without an operator; those of
parameters are recorded all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from ..model.arrays import AnyArray
from ..model.dtypes import normalize_dtype
from ..model.errors import DumpError
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER
from .call_sites import NOWHERE, find_call_site
from .options import RecordOptions
from .recording import Recording

#: Functions of the framework that run the backward pass; its operators are called from them.
_BACKWARD_FUNCTIONS = frozenset({"grad", "backward", "run_backward"})
#: Base classes of optimizers: module and name.
_OPTIMIZERS = (
    ("mindspore.nn", "Optimizer"),
    ("mindspore.experimental.optim.optimizer", "Optimizer"),
)


@dataclass
class _Step:
    """What was recorded of one step, while it runs."""

    recording: Recording
    #: place in memory -> number of the tensor that was there last
    places: dict[tuple[Any, ...], int] = field(default_factory=dict)
    #: recorded tensors: while they live, their memory is not used again
    alive: list[Any] = field(default_factory=list)
    #: place in memory -> name of the parameter that lies there
    parameters: dict[tuple[Any, ...], str] = field(default_factory=dict)
    cells: list[list[int]] = field(default_factory=list)  #: calls in each running cell so far
    names: list[str] = field(default_factory=list)  #: of the running cells


class MindSporeRecorder:
    """A context manager that records what runs inside it, in PyNative mode.

    A step ends where the model is called after an optimizer has run, and at the end of the block.
    All recorded tensors stay in memory until then.
    """

    def __init__(self, model: Any, options: RecordOptions) -> None:
        """Record this ``mindspore.nn.Cell``."""
        self._model = model
        self._options = options
        self._number = -1
        self._current: _Step | None = None
        self._has_updated = False
        self._is_paused = False
        self._hooks = ExitStack()
        self._parameters = {item.name: item for item in model.get_parameters()}

    def __enter__(self) -> MindSporeRecorder:
        """Begin to record, unless this rank was not chosen."""
        import mindspore

        if not hasattr(mindspore, "MsDispatchMode"):
            raise DumpError("record: needs MindSpore 2.10 or later; use msprobe for older versions")
        if self._options.is_chosen_rank:
            with ExitStack() as hooks:
                self._install(hooks)
                self._hooks = hooks.pop_all()
            self._begin_step()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the step and write it, also after an error."""
        self._hooks.close()
        self._end_step(is_complete=error_type is None)

    def _install(self, hooks: ExitStack) -> None:
        """Add all hooks; they are removed when ``hooks`` is closed."""
        for name, cell in self._model.cells_and_names():
            for hook in (
                cell.register_forward_pre_hook(self._make_begin_hook(name)),
                cell.register_forward_hook(self._make_end_hook(name), always_call=True),
            ):
                hooks.callback(hook.remove)
        for name, parameter in self._parameters.items():
            if parameter.requires_grad:
                hooks.callback(parameter.register_hook(self._make_gradient_hook(name)).remove)
        for module_name, class_name in _OPTIMIZERS:
            optimizer_class = getattr(sys.modules.get(module_name), class_name, None)
            if optimizer_class is not None:
                _wrap_call(optimizer_class, self._end_update, hooks)
        hooks.enter_context(_make_operator_mode(self._run_operator))

    def _begin_step(self) -> None:
        self._number += 1
        self._has_updated = False
        if self._options.is_chosen_step(self._number):
            recording = self._options.start_recording("mindspore", self._number)
            recording.details["mindspore"] = sys.modules["mindspore"].__version__
            self._current = _Step(recording)

    def _locate_parameters(self) -> dict[tuple[Any, ...], str]:
        """Return the place of each parameter in memory, with its name."""
        return {_get_place(parameter): name for name, parameter in self._parameters.items()}

    def _end_step(self, *, is_complete: bool) -> None:
        if self._current is not None:
            self._current.recording.write(is_complete=is_complete)
            self._current = None

    def _make_begin_hook(self, name: str) -> Callable[..., None]:
        def begin_cell(cell: Any, inputs: Any) -> None:
            if self._has_updated and cell is self._model:
                self._end_step(is_complete=True)
                self._begin_step()
            if self._current is not None:
                if not self._current.parameters:
                    self._current.parameters = self._locate_parameters()
                self._current.cells.append([])
                self._current.names.append(name)

        return begin_cell

    def _make_end_hook(self, name: str) -> Callable[..., None]:
        def end_cell(cell: Any, inputs: Any, outputs: Any) -> None:
            step = self._current
            if step is None or not step.cells:
                return
            calls = step.cells.pop()
            step.names.pop()
            if not self._is_chosen(name):
                return
            kind = type(cell).__name__
            number = step.recording.add_call(
                name=f"Cell.{name or kind}.{kind}.forward.{len(step.recording.calls)}",
                kind=f"Cell.{kind}",
                level="module",
                module=name,
                inputs=[self._add(step, tensor) for tensor in _iterate_tensors(inputs)],
                outputs=[self._add(step, tensor) for tensor in _iterate_tensors(outputs)],
            )
            for call in calls:
                step.recording.calls[call]["parent"] = number
            if step.cells:
                step.cells[-1].append(number)

        return end_cell

    def _make_gradient_hook(self, name: str) -> Callable[[Any], None]:
        def add_gradient(gradient: Any) -> None:
            step = self._current
            if step is None:
                return
            is_new = _get_place(gradient) not in step.places
            number = self._add(step, gradient)
            step.recording.tensors[number]["gradient_of"] = name
            if is_new:
                step.recording.add_gradient_call(name, number)

        return add_gradient

    def _end_update(self, optimizer: Any) -> None:
        """Record what an optimizer made of its parameters, one call for each."""
        self._has_updated = True
        step = self._current
        if step is None:
            return
        gradients = {
            tensor["gradient_of"]: number
            for number, tensor in enumerate(step.recording.tensors)
            if "gradient_of" in tensor
        }
        kind = type(optimizer).__name__
        for name in gradients.keys() & {item.name for item in optimizer.get_parameters()}:
            if not self._is_chosen(name):
                continue
            parameter = self._parameters[name]
            old_number = step.places.pop(_get_place(parameter), None)
            new_number = self._add(step, parameter)
            step.recording.tensors[new_number].pop("parameter", None)
            step.recording.tensors[new_number]["update_of"] = name
            step.recording.add_call(
                name=f"Optimizer.{kind}.{name}",
                kind=f"Optimizer.{kind}",
                phase=OPTIMIZER,
                inputs=[number for number in (old_number, gradients[name]) if number is not None],
                outputs=[new_number],
            )

    def _run_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator, record it, and return its result."""
        step = self._current
        keywords = kwargs or {}
        if step is None or self._is_paused:
            return func(*args, **keywords)
        is_backward = sys._getframe(2).f_code.co_name in _BACKWARD_FUNCTIONS
        module = "" if is_backward or not step.names else step.names[-1]
        if not self._is_chosen(module):
            return func(*args, **keywords)
        inputs = [self._add_argument(step, value) for value in _iterate_arguments(args)]
        result = func(*args, **keywords)
        outputs = [self._add(step, tensor) for tensor in _iterate_tensors(result)]
        if not set(outputs) <= set(inputs):
            number = step.recording.add_call(
                name=f"Primitive.{func.name}.{len(step.recording.calls)}",
                kind=f"Primitive.{func.name}",
                phase=BACKWARD if is_backward else FORWARD,
                module=module,
                site=NOWHERE if is_backward else find_call_site(),
                inputs=inputs,
                outputs=outputs,
            )
            if step.cells and not is_backward:
                step.cells[-1].append(number)
        return result

    def _is_chosen(self, name: str) -> bool:
        return self._options.is_chosen_module(name)

    def _add_argument(self, step: _Step, value: Any) -> int:
        if not isinstance(value, bool | int | float):
            return self._add(step, value)
        number = step.recording.add_tensor(type(value).__name__, ())
        step.recording.tensors[number]["value"] = value
        return number

    def _add(self, step: _Step, tensor: Any) -> int:
        """Return the number of a tensor; measure and add it if it is new."""
        place = _get_place(tensor)
        number = step.places.get(place)
        if number is not None:
            return number
        number = step.recording.add_tensor(normalize_dtype(str(tensor.dtype)), tuple(tensor.shape))
        step.places[place] = number
        step.alive.append(tensor)
        name = step.parameters.get(place)
        if name is not None:
            step.recording.tensors[number]["parameter"] = name
        if tensor.size:
            self._is_paused = True
            try:
                array = _to_array(tensor)
            finally:
                self._is_paused = False
            step.recording.measurements.add(number, array)
            if self._options.is_whole_tensor(number):
                step.recording.write_array(number, array)
        return number


def _get_place(tensor: Any) -> tuple[Any, ...]:
    """Return the place of a tensor in memory, and how often it was written to."""
    return (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype),
            tensor._version)  # fmt: skip


def _to_array(tensor: Any) -> AnyArray:
    """Return the elements of a tensor, float32 where NumPy has no such dtype."""
    import mindspore

    if tensor.dtype == mindspore.bfloat16:
        tensor = tensor.astype(mindspore.float32)
    array: AnyArray = tensor.asnumpy()
    return array


def _iterate_arguments(value: Any) -> Iterator[Any]:
    """Yield the tensors and numbers among the arguments of an operator, at any depth."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _iterate_arguments(item)
    elif isinstance(value, bool | int | float) or _is_tensor(value):
        yield value


def _iterate_tensors(value: Any) -> Iterator[Any]:
    for item in _iterate_arguments(value):
        if _is_tensor(item):
            yield item


def _is_tensor(value: Any) -> bool:
    import mindspore

    return isinstance(value, mindspore.Tensor)


def _make_operator_mode(run_operator: Callable[..., Any]) -> Any:
    """Return a context manager under which every operator is run by ``run_operator``."""
    import mindspore

    dispatch_mode: Any = mindspore.MsDispatchMode

    class OperatorMode(dispatch_mode):  # type: ignore[misc]  # the base is not typed
        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            return run_operator(func, args, kwargs)

    return OperatorMode()


def _wrap_call(cls: Any, after_call: Callable[[Any], None], hooks: ExitStack) -> None:
    """Let ``after_call`` follow each call of an object of a class, until ``hooks`` is closed."""
    inherited_call = cls.__call__
    has_own_call = "__call__" in vars(cls)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = inherited_call(self, *args, **kwargs)
        after_call(self)
        return result

    def restore() -> None:
        if has_own_call:
            cls.__call__ = inherited_call
        else:
            del cls.__call__

    cls.__call__ = call
    hooks.callback(restore)
