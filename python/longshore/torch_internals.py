"""Wraps every undocumented PyTorch name that this package uses. Tried with PyTorch 2.15; what older versions lack, from
2.4 on, is said where it is used."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.utils.checkpoint
from torch import overrides
from torch._subclasses import fake_tensor
from torch.nn.utils import stateless
from torch.utils import _python_dispatch
from torch.utils._pytree import tree_leaves as tree_leaves, tree_map as tree_map

_Function = TypeVar("_Function", bound=Callable[..., Any])

# contexts that handle tensors of this package's classes as plain ones
DisableTorchFunction = torch._C.DisableTorchFunction
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass

_NOTHING = nullcontext()


def profiled(what: str, name: str = "") -> AbstractContextManager:
    """The context that torch.profiler shows as "longshore: WHAT NAME", if it records this thread."""
    if not torch.autograd._profiler_enabled():
        return _NOTHING
    return torch.profiler.record_function(f"longshore: {what} {name}".rstrip())


# ---- tensors


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place."""
    return tensor._version


def base(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that this one is a view of, or the tensor itself."""
    return tensor if tensor._base is None else tensor._base


def storage_id(storage: torch.UntypedStorage) -> int:
    return storage._cdata


def storage_users(tensor: torch.Tensor) -> int:
    """How many tensors share a tensor's memory."""
    return torch._C._storage_Use_Count(storage_id(tensor.untyped_storage()))


def refuse_access(tensor: torch.Tensor, why: str) -> None:
    """Makes every later access to a tensor's storage raise RuntimeError(why). PyTorch 2.4 cannot, and does nothing."""
    if hasattr(torch._C, "_set_storage_data_ptr_access_error_msg"):
        torch._C._set_storage_data_ptr_access_error_msg(storage_id(tensor.untyped_storage()), why)


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether torch.func wraps a tensor, which then has no memory of its own."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor has strides in memory of its own."""
    return tensor.layout is torch.strided and not is_transformed(tensor)


def wrapper(cls: type, shape: torch.Size, dtype: torch.dtype, **more: Any) -> Any:
    """A tensor of a subclass, without memory. more: its device, and whether it requires_grad."""
    return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, **more)


def grad_hooks(p: torch.Tensor) -> dict | None:
    """A tensor's own dict of hooks, or None if it never had any."""
    return p._backward_hooks


def post_accumulate_hooks(p: torch.Tensor) -> dict | None:
    """A parameter's own dict of hooks, or None if it never had any."""
    return p._post_accumulate_grad_hooks


def carry_hooks(p: torch.Tensor, new: torch.Tensor) -> None:
    """Gives a parameter's hooks to the parameter that replaces it."""
    for name in "_backward_hooks", "_post_accumulate_grad_hooks":
        if getattr(p, name):
            setattr(new, name, getattr(p, name))


def may_get(p: torch.Tensor, data: torch.Tensor) -> bool:
    """Whether p.data = data keeps the object: not from the meta device, and not to devices unlike CUDA."""
    return torch._has_compatible_shallow_copy_type(p, data)


# ---- autograd


def graph_task() -> int:
    """The number of the backward pass that this thread computes; -1 outside backward."""
    return torch._C._current_graph_task_id()


def in_backward() -> bool:
    return graph_task() != -1


def in_autograds_thread() -> bool:
    """Whether backward runs in a thread that is not Python's: of a device, or a deep one."""
    return in_backward() and isinstance(threading.current_thread(), threading._DummyThread)


def at_end_of_backward(call: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(call)


def accumulation_node(leaf: torch.Tensor) -> Any:
    """The node that adds up a leaf's gradient."""
    return leaf.view_as(leaf).grad_fn.next_functions[0][0]


def leaf_of(node: Any) -> torch.Tensor | None:
    """The leaf whose gradient a node of a graph adds up; None for any other node."""
    return getattr(node, "variable", None)


def is_captured(leaf: torch.Tensor) -> bool:
    """Whether the backward pass that runs returns a leaf's gradient, as torch.autograd.grad() does, and adds nothing to
    its .grad."""
    with DisableTorchFunctionSubclass(), torch.enable_grad():
        node = accumulation_node(leaf)
    try:
        torch._C._will_engine_execute_node(node)
    except RuntimeError:  # what PyTorch raises for a leaf in torch.autograd.grad()
        return True
    return False


def current_node() -> Any:
    return torch._C._current_autograd_node()


def in_scripts_function() -> bool:
    """Whether the backward() of a torch.autograd.Function runs."""
    return is_of_function(current_node())


def is_of_function(node: Any) -> bool:
    """Whether a node of a graph is a torch.autograd.Function's, which may lead where the graph does not show."""
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def next_sequence_number() -> int:
    """The number of the next autograd node in this thread. Backward runs nodes with higher numbers first."""
    return torch._C._autograd._get_sequence_nr()


def sequence_number(node: Any) -> int:
    return node._sequence_nr()


def saved_tensor_hooks() -> tuple | None:
    """The innermost (pack, unpack) hooks of this thread, or None."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def saves_checkpoints_input() -> bool:
    """Whether torch.utils.checkpoint itself saves a tensor now, from which it will compute again."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals["__name__"].startswith(("longshore.", "torch.autograd.")):
        frame = frame.f_back
    return frame is not None and frame.f_globals["__name__"] == "torch.utils.checkpoint"


def begin_checkpoint(function: Callable, args: tuple, kwargs: dict) -> Any:
    """Begins a checkpoint around what this thread computes next, which function(*args, **kwargs) computes again. It
    ends with the returned generator's next step."""
    made = torch.utils.checkpoint._checkpoint_without_reentrant_generator
    given = [function, True, torch.utils.checkpoint.noop_context_fn, "default", False]
    given += [True] * ("early_stop" in inspect.signature(made).parameters)
    checkpoint = made(*given, *args, **kwargs)
    next(checkpoint)
    return checkpoint


# ---- modules


def parameters_of(module: torch.nn.Module) -> dict:
    return module._parameters


def buffers_of(module: torch.nn.Module) -> dict:
    return module._buffers


def buffers_not_saved(module: torch.nn.Module) -> set:
    return module._non_persistent_buffers_set


def _kinds_of_hooks(module: torch.nn.Module) -> tuple:
    return module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks


def module_hooks(module: torch.nn.Module) -> list:
    """All hooks of a module's forward and backward."""
    return [hook for hooks in _kinds_of_hooks(module) for hook in hooks.values()]


def remove_hooks(module: torch.nn.Module) -> None:
    """Removes them."""
    for hooks in _kinds_of_hooks(module):
        hooks.clear()


def is_compiled(module: torch.nn.Module) -> bool:
    return module._compiled_call_impl is not None


def before_load_state_dict(module: torch.nn.Module, hook: Callable) -> None:
    module._register_load_state_dict_pre_hook(hook, with_module=True)


def loads(module: torch.nn.Module, name: str, value: torch.Tensor) -> bool:
    """Whether a module loads this value under this name. If so, it has the value afterwards."""
    refused: list = []
    module._load_from_state_dict({name: value}, "", {"version": module._version}, False, [], [], refused)
    return not refused


class LoadsChild(torch.nn.Module):
    """A module whose state_dict() is that of its child `module`, without the child's name, inside other modules too."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the state_dict() of the module."""
        out, prefix = self.module.state_dict(*args, **kwargs), kwargs.get("prefix", "")
        versions = getattr(out, "_metadata", {})  # load_state_dict() of an outer module asks with the child's name
        for name in [name for name in versions if prefix and f"{name}.".startswith(prefix)]:
            versions[f"{prefix}module.{name[len(prefix) :]}".rstrip(".")] = versions[name]
        return out

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Called in load_state_dict() of an outer module, which loads the child next, by the names that it has there:
        gives the values those names, and afterwards the reports the child's."""
        inner = f"{prefix}module."
        begins = re.compile(rf"(?<![\w.]){re.escape(inner)}")
        for name in [name for name in state_dict if name.startswith(prefix)]:
            state_dict[inner + name[len(prefix) :]] = state_dict.pop(name)

        def rename(*_):
            handle.remove()
            for said in (missing_keys, unexpected_keys, error_msgs):
                said[:] = [begins.sub(prefix, text) for text in said]

        handle = torch.nn.Module.register_load_state_dict_post_hook(self, rename)


def outside_inference_mode(function: _Function) -> _Function:
    """Decorates what makes tensors for training, which cannot use those that are made in inference mode."""
    return cast(_Function, torch.inference_mode(False)(function))


def in_functional_call() -> bool:
    """Whether torch.func.functional_call() runs and has replaced parameters for a while."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not stateless._functional_call.__code__:
        frame = frame.f_back
    return frame is not None


def parse_to(*args: Any, **kwargs: Any) -> tuple:
    """(device, dtype) of the arguments of Module.to()."""
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    return device, dtype


BatchNorm = torch.nn.modules.batchnorm._NormBase


def recompile_limit() -> int:
    """How many graphs of a function torch.compile makes before it gives up; 0 if this PyTorch names it otherwise."""
    return getattr(torch._dynamo.config, "recompile_limit", 0)


def raise_recompile_limit(limit: int) -> None:
    """Raises the limit for PyTorch versions whose torch.compile takes no limit as an option."""
    torch._dynamo.config.cache_size_limit = max(torch._dynamo.config.cache_size_limit, limit)


# ---- modes, devices, optimizers


def modes() -> list[tuple]:
    """[(module with push and pop functions, mode)] for all modes that this thread has entered, outermost first."""
    return [
        *((overrides, mode) for mode in overrides._get_current_function_mode_stack()),
        *((_python_dispatch, mode) for mode in _python_dispatch._get_current_dispatch_mode_stack()),
    ]


def enter_mode(of: Any, mode: Any, entered: ExitStack) -> None:
    """Enters a mode until the ExitStack ends."""
    of._push_mode(mode)
    entered.callback(of._pop_mode)


def accelerator() -> torch.device:
    if hasattr(torch._C, "_get_accelerator"):
        return torch._C._get_accelerator()
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def cuda_of_driver() -> int:
    """The newest CUDA that the driver knows: 13020 is 13.2."""
    return torch._C._cuda_getDriverVersion()


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def note_step_called(optimizer: Any) -> None:
    """Tells learning-rate schedulers that step() was called: the engine makes the steps."""
    optimizer._opt_called = optimizer.step._wrapped_by_lr_sched = True


# ---- tracing

DispatchMode = _python_dispatch.TorchDispatchMode
FakeMode = fake_tensor.FakeTensorMode  # tensors without memory, on any device
fake_log = fake_tensor.log  # has a traceback of each operation that refuses its tensors
# what an operation on these raises if its result depends on values
UnknownValue = fake_tensor.DynamicOutputShapeException, fake_tensor.DataDependentOutputException


def device_of(fake: Any) -> torch.device:
    """The device that a tensor without memory is on."""
    return fake.fake_device


def name_of(operation: Any) -> str:
    """An operation's name without its overload: "add_" of aten.add_.Tensor."""
    return operation._opname


def is_view(operation: Any) -> bool:
    """Whether an operation's result shares the memory of an argument that it does not write."""
    returns = operation._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def argument(operation: Any, args: tuple, kwargs: dict, name: str) -> Any:
    """The argument of this name in a call of an operation; None: it is not given."""
    return {**dict(zip((a.name for a in operation._schema.arguments), args)), **kwargs}.get(name)


# ---- process groups


def group_timeout() -> float | None:
    """Seconds that the script's process group waits, if its backend says so."""
    group = torch.distributed.group.WORLD
    for device in group._device_types:
        limit = getattr(getattr(group._get_backend(device), "options", None), "_timeout", None)
        if limit is not None:
            return limit.total_seconds()
    return None


def group_store() -> Any:
    """The store of the script's process group."""
    return torch.distributed.distributed_c10d._get_default_store()
