"""Record chosen steps of a PyTorch program: hooks of modules, operators, gradients, optimizers.

What is recorded does not change what is computed: operators run as they would, and their tensors
are only read.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..options import RecordOptions
from .step_recorder import StepRecorder, get_local
from .tensors import TensorIndex, get_place

if TYPE_CHECKING:
    import torch

#: What torch.compile puts before the name of every module.
_COMPILED_PREFIX = "_orig_mod."


class PyTorchRecorder:
    """A context manager that records what runs inside it.

    A step ends where the model is called after an optimizer has run, and at the end of the block.
    A recorder that is used for several blocks counts on.
    """

    def __init__(self, model: torch.nn.Module | None, options: RecordOptions) -> None:
        """Record this model; without one, that which is called first."""
        self._model = model
        self._options = options
        self._step = -1
        self._current: StepRecorder | None = None  #: None while a step is not recorded
        self._has_updated = False  #: an optimizer has run, so the next forward pass is another step
        self._is_paused = False  #: while tensors are measured, whose operators are not the model's
        self._hooks = ExitStack()
        self._mode: Any = None
        self._is_compiled = False
        self._module_names: dict[int, str] = {}
        self._parameters: dict[str, torch.Tensor] = {}

    def __enter__(self) -> PyTorchRecorder:
        """Begin to record, unless this rank was not chosen."""
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
        from torch.nn.modules import module as modules
        from torch.optim import optimizer as optimizers

        if self._model is not None:
            self._name_parts(self._model, hooks)
        self._is_compiled = _run_compiled_code_eagerly(self._model, hooks)
        for hook in (
            modules.register_module_forward_pre_hook(self._begin_module),
            modules.register_module_forward_hook(self._end_module, always_call=True),
            optimizers.register_optimizer_step_pre_hook(self._begin_update),
            optimizers.register_optimizer_step_post_hook(self._end_update),
        ):
            hooks.callback(hook.remove)
        self._mode = _make_operator_mode(self._run_operator)
        hooks.enter_context(self._mode)

    def _name_parts(self, model: torch.nn.Module, hooks: ExitStack) -> None:
        """Take the names of modules and parameters from the model."""
        self._model = model
        for name, module in model.named_modules():
            self._module_names.setdefault(id(module), name.removeprefix(_COMPILED_PREFIX))
        for name, parameter in model.named_parameters():
            own_name = name.removeprefix(_COMPILED_PREFIX)
            self._parameters[own_name] = parameter
            if parameter.requires_grad and parameter.is_leaf:
                add_hook: Any = parameter.register_post_accumulate_grad_hook
                hooks.callback(add_hook(self._make_grad_hook(own_name)).remove)

    def _make_grad_hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def add_gradient(parameter: torch.Tensor) -> None:
            with self._pause() as current:
                if current is not None and parameter.grad is not None:
                    current.add_gradient(name, parameter.grad)

        return add_gradient

    def _begin_step(self) -> None:
        self._step += 1
        self._has_updated = False
        if not self._options.is_chosen_step(self._step):
            return
        recording = self._options.start_recording("pytorch", self._step)
        recording.details["torch"] = sys.modules["torch"].__version__
        if self._is_compiled:
            recording.details["compiled"] = "ran eagerly while it was recorded"
        recording.details |= self._describe_placements()
        index = TensorIndex(recording, self._options.is_whole_tensor)
        index.parameters = self._locate_parameters()
        self._current = StepRecorder(recording, index, self._module_names, self._options)

    def _end_step(self, *, is_complete: bool) -> None:
        if self._current is not None:
            self._current.finish().write(is_complete=is_complete)
            self._current = None

    def _locate_parameters(self) -> dict[tuple[Any, ...], str]:
        """Return the place of each parameter in memory, with its name."""
        places = {}
        for name, parameter in self._parameters.items():
            local = get_local(parameter)
            places[(local.untyped_storage()._cdata, *get_place(local))] = name
        return places

    def _describe_placements(self) -> dict[str, Any]:
        """Return how the parameters are distributed, for those that are."""
        placements = {}
        parameter: Any
        for name, parameter in self._parameters.items():
            if hasattr(parameter, "placements"):
                placements[name] = {
                    "placements": [str(placement) for placement in parameter.placements],
                    "mesh": list(parameter.device_mesh.shape),
                    "shape": list(parameter.shape),
                }
        return {"placements": placements} if placements else {}

    @contextmanager
    def _pause(self) -> Iterator[StepRecorder | None]:
        """Give the current step, and leave the operators that measure its tensors unrecorded."""
        was_paused = self._is_paused
        self._is_paused = True
        try:
            yield self._current
        finally:
            self._is_paused = was_paused

    def _run_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._current is None or self._is_paused:
            return func(*args, **kwargs)
        return self._current.run_operator(func, args, kwargs)

    def _begin_module(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if self._is_paused:
            return
        if self._model is None:
            self._name_parts(module, self._hooks)
            if self._current is not None:
                self._current.index.parameters = self._locate_parameters()
        if self._has_updated:
            self._end_step(is_complete=True)
            self._begin_step()
        with self._pause() as current:
            if current is not None:
                current.begin_module(module, args)

    def _end_module(self, module: torch.nn.Module, args: object, result: Any) -> None:
        with self._pause() as current:
            if current is not None:
                current.end_module(module, result)

    def _begin_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        with self._pause() as current:
            if current is not None:
                current.begin_update(self._select_parameters(optimizer))

    def _end_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._has_updated = True
        with self._pause() as current:
            if current is not None:
                current.end_update(type(optimizer).__name__, self._select_parameters(optimizer))
        if not self._options.has_chosen_step_after(self._step) and _is_innermost_mode(self._mode):
            self._end_step(is_complete=True)
            self._hooks.close()

    def _select_parameters(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """Return the parameters of an optimizer by name."""
        ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return {
            name: parameter for name, parameter in self._parameters.items() if id(parameter) in ids
        }


def _make_operator_mode(run_operator: Callable[..., Any]) -> Any:
    """Return a context manager under which every operator is run by ``run_operator``.

    Operators of distributed tensors are given back, so that those on the local tensors are seen.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    plain = torch.Tensor.__torch_dispatch__
    dispatch_mode: Any = TorchDispatchMode

    class OperatorMode(dispatch_mode):  # type: ignore[misc]  # the base is not typed
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if any(issubclass(tensor_type, FakeTensor) for tensor_type in types):
                return func(*args, **(kwargs or {}))
            if any(tensor_type.__torch_dispatch__ != plain for tensor_type in types):
                return NotImplemented
            return run_operator(func, args, kwargs or {})

    return OperatorMode()


def _is_innermost_mode(mode: Any) -> bool:
    """Return whether a mode can be left now: no other was entered after it."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode() is mode


def _run_compiled_code_eagerly(model: torch.nn.Module | None, hooks: ExitStack) -> bool:
    """Let compiled code run eagerly while it is recorded; return whether the model has any.

    The operators of compiled code cannot be seen. Its numbers may differ from those of eager code.
    """
    import torch

    is_compiled = model is not None and any(map(_is_compiled, model.modules()))
    if (is_compiled or model is None) and hasattr(torch.compiler, "set_stance"):
        hooks.enter_context(torch.compiler.set_stance("force_eager"))
    if is_compiled:
        warnings.warn(
            "dumpdiff.record: code that torch.compile compiled runs eagerly while it is recorded, "
            "so its numbers may differ from those of the compiled code",
            stacklevel=5,
        )
    return is_compiled


def _is_compiled(module: torch.nn.Module) -> bool:
    is_wrapper = type(module).__name__ == "OptimizedModule"
    return is_wrapper or getattr(module, "_compiled_call_impl", None) is not None
