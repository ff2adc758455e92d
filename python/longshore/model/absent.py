"""Absent parameters: what a parameter is while its value lies on the drives.

The parameter object stays, with its shape, dtype and place in the module. Only its class changes to Absent, so that
every operation on it comes here. An operation that reads gets a fetched copy, through which gradients reach the
parameter, and autograd keeps the parameter's place instead of that copy. One that writes raises an exception that names
the parameter.
"""

import contextlib

import torch
from torch import nn

from ..errors import AbsentParameterError, LongshoreError
from ..torch_internals import DisableTorchFunctionSubclass, has_storage, storage_id, tree_leaves, tree_map, version_of
from .write_tracking import CHANGE, IN_PASS, watch

_ADVICE = "use it inside `with longshore.resident(parameter):` (write=True to change it)"
_BEFORE = (
    "convert, resize and replace parameters before longshore.wrap(), whose device= moves them; to give one other "
    f"values, {CHANGE}"
)

# what to do instead where micro-batches cannot be computed together
ONE_BY_ONE = "call backward() for each of them, and then step() (in a Trainer: layer_major=False)"


def _words(text):
    return frozenset(text.split())


# attributes that are about the tensor, not its value
_ABOUT = {
    "__get__": _words("""
        shape dtype device requires_grad grad is_leaf grad_fn layout ndim names is_meta is_cpu is_cuda is_sparse
        is_quantized is_mps is_xla is_xpu is_nested itemsize nbytes _version _backward_hooks _post_accumulate_grad_hooks
        output_nr retains_grad name volatile _grad is_sparse_csr is_mkldnn is_vulkan is_maia is_mtia is_ipu is_hpu
        grad_dtype"""),
    "__set__": _words("requires_grad grad _backward_hooks _post_accumulate_grad_hooks _grad grad_dtype names"),
    "__delete__": _words("grad _grad"),
}
_METHODS = _words("""
    size dim numel nelement ndimension element_size stride storage_offset is_floating_point is_complex is_signed
    is_contiguous requires_grad_ register_hook register_post_accumulate_grad_hook get_device is_inference __len__
    __hash__ is_same_size _is_view has_names is_coalesced is_conj is_neg __dir__ is_shared is_pinned retain_grad
    _has_compatible_shallow_copy_type""")
# functions that ask for the shape and dtype of their first argument, or of all others
_OF_FIRST = _words("""
    zeros_like ones_like empty_like full_like rand_like randn_like randint_like new_zeros new_ones new_empty new_full
    new_tensor new_empty_strided new result_type""")
_OF_OTHERS = _words("view_as expand_as reshape_as resize_as_ type_as to")
_COPIES = _words("""
    detach numpy tolist item __format__ equal allclose isclose isfinite isnan isinf argmax argmin eq ne lt le gt ge
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__ count_nonzero""")  # functions whose results have no gradient
_OPERATORS = _words("add sub mul truediv floordiv mod pow and or xor lshift rshift")
_IN_PLACE = {"__setitem__", *(f"__i{name}__" for name in _OPERATORS)}


def is_about(func):
    """Whether a function asks about the tensor, not its value."""
    name = getattr(func, "__name__", "")
    owner = getattr(getattr(func, "__self__", None), "__name__", "")
    if name in _ABOUT:
        return owner in _ABOUT[name]
    return name in _METHODS or (name == "type" and func is torch.Tensor.type)


def writes(func, kwargs):
    """Whether a call changes its first argument."""
    name = getattr(func, "__name__", "").partition(".")[0]  # without the overload of torch.ops.aten
    return name in _IN_PLACE or name.endswith("_") and not name.startswith("__") or bool(kwargs.get("inplace"))


class StandIn(torch.Tensor):
    """The base class of tensors without memory that fetch a value when they are used."""

    def longshore_value(self):
        """Returns a tensor of its own with the value."""
        raise NotImplementedError

    @classmethod
    def longshore_call(cls, func, name, first, args, kwargs):
        """Calls a function that asks for values. name: the function's; first: the tensor that it is called on."""
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if is_about(func):
            with DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = args[0] if args else kwargs.get("tensor")  # as torch.nn.init names it
        return cls.longshore_call(func, getattr(func, "__name__", ""), first, args, kwargs)

    def __deepcopy__(self, memo):
        out = memo[id(self)] = self.longshore_value()
        return out

    def __reduce_ex__(self, protocol):
        return self.longshore_value().__reduce_ex__(protocol)


class Fetched(torch.Tensor):
    """A copy of a value on the drives, or a view of such a copy. Writing to it raises, since that would be lost."""

    longshore_source = None  # (handle, updates) of a copy that was made for one operation: autograd keeps its place

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(issubclass(t, StandIn) for t in types):
            return NotImplemented  # they fetch first
        if func in _DIFFERENTIATE:
            return _DIFFERENTIATE[func](*args, **kwargs)
        first = args[0] if args else kwargs.get("tensor")  # as torch.nn.init names it
        target = kwargs.get("out", first if writes(func, kwargs) else None)
        for written in tensors(target):
            if isinstance(written, Fetched) and func is torch.Tensor.requires_grad_:  # nn.Parameter() of it, mostly
                if written.longshore_advice is not IN_PASS:
                    raise AbsentParameterError(
                        f"{written.longshore_name}: this is a copy of a value that lies on the "
                        "drives; parametrize before longshore.wrap(), and clone() what is to "
                        "be a tensor of its own"
                    )
            elif isinstance(written, Fetched):
                raise AbsentParameterError(
                    f"{written.longshore_name}: this is a copy of a value that lies on the "
                    f"drives, and writing to it would be lost; {written.longshore_advice}"
                )
        if func is torch.Tensor.__iter__:
            return iter(args[0].unbind(0))
        if func is torch.Tensor.__repr__:
            return repr(args[0].as_subclass(torch.Tensor))
        given = [a for a in tensors((args, kwargs)) if isinstance(a, Fetched)]
        with DisableTorchFunctionSubclass():
            memory = {storage_id(a.untyped_storage()): a for a in given}
            with _saving(memory):
                out = func(*args, **kwargs)
            if func in (torch.Tensor.numpy, torch.Tensor.__array__):
                out.flags.writeable = False

            def of(t):
                if not isinstance(t, torch.Tensor) or isinstance(t, nn.Parameter):
                    return t
                whose = memory.get(storage_id(t.untyped_storage())) if has_storage(t) else None
                if whose is not None:
                    return fetched(t, whose.longshore_name, whose.longshore_advice, whose.longshore_source)
                return t.as_subclass(torch.Tensor) if isinstance(t, Fetched) else t

            return tree_map(of, out)

    def __deepcopy__(self, memo):
        out = memo[id(self)] = self.as_subclass(torch.Tensor).clone()
        return out

    def __reduce_ex__(self, protocol):
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)


def fetched(value, name, advice=CHANGE, source=None):
    """Marks a copy as Fetched. name: the parameter's; advice: how to change the parameter instead."""
    out = value.as_subclass(Fetched)
    out.longshore_name, out.longshore_advice, out.longshore_source = name, advice, source
    return out


def _saving(memory):
    """The context of an operation on copies, in which autograd keeps the places of parameters instead of the copies.
    memory: {the id of a storage: a copy in it}."""
    sources = {key: copy.longshore_source for key, copy in memory.items() if copy.longshore_source is not None}
    if not sources or not torch.is_grad_enabled():
        return contextlib.nullcontext()
    return next(iter(sources.values()))[0].streams.saving(sources)


class _Read(torch.autograd.Function):
    """Reads an absent parameter. The gradient of the copy is the parameter's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(p, handle):
        return handle.copy()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None

    @staticmethod
    def jvp(ctx, tangent, _):
        return tangent.view_as(tangent)


def is_read(node):
    """Whether a node of a graph is that of reading an absent parameter."""
    return type(node).__name__ == "_ReadBackward"


def _listed(inputs):
    """The inputs of torch.autograd.grad(), which takes one or several."""
    if isinstance(inputs, (torch.Tensor, torch.autograd.graph.GradientEdge)):
        return [inputs]
    return [*inputs.values()] if isinstance(inputs, dict) else [*inputs]


def _place_in_graph(t):
    """What torch.autograd.grad() takes for a tensor whose value is not asked for."""
    if not isinstance(t, (Absent, Fetched)):
        return t
    with DisableTorchFunctionSubclass():
        return torch.autograd.graph.get_gradient_edge(t) if t.requires_grad else t.detach()


def _plain_in_graph(t):
    """A tensor without this page's classes, which would be in force while backward runs."""
    t = _copy_for_operation(t) if isinstance(t, Absent) else t
    with DisableTorchFunctionSubclass():
        return t.as_subclass(torch.Tensor) if isinstance(t, Fetched) else t


def _grad(outputs, inputs, materialize_grads=False, allow_unused=None, create_graph=False, **more):
    """torch.autograd.grad() of parameters that are not in memory: asks for their places in the graph."""
    inputs, (outputs, more) = _listed(inputs), tree_map(_plain_in_graph, (outputs, more))
    places = [_place_in_graph(t) for t in inputs]
    allow_unused = materialize_grads if allow_unused is None else allow_unused
    try:
        found = torch.autograd.grad(outputs, places, create_graph=create_graph, allow_unused=allow_unused, **more)
    except RuntimeError as unused:
        if not any(isinstance(t, Absent) and t.longshore.streams.turns for t in inputs):
            raise
        raise LongshoreError(
            "torch.autograd.grad() of parameters within train_batch(): the graph of each micro-batch is made layer by "
            f"layer there; {ONE_BY_ONE}"
        ) from unused
    return tuple(
        torch.zeros_like(t, requires_grad=create_graph) if g is None and materialize_grads else g
        for g, t in zip(found, inputs)
    )


def _backward(outputs, gradient=None, grad_tensors=None, inputs=None, **more):
    """torch.autograd.backward() and Tensor.backward(), likewise."""
    outputs, gradients = tree_map(_plain_in_graph, (outputs, gradient if grad_tensors is None else grad_tensors))
    inputs = None if inputs is None else [_place_in_graph(t) for t in _listed(inputs)]
    torch.autograd.backward(outputs, gradients, inputs=inputs, **more)


_DIFFERENTIATE = {torch.autograd.grad: _grad, torch.autograd.backward: _backward, torch.Tensor.backward: _backward}


class Handle:
    """What Longshore knows of a parameter: `parameter.longshore`."""

    __slots__ = ("streams", "block", "index", "name", "view", "version", "kind", "users", "bits", "temporary")

    def __init__(self, streams, block, index, name, kind):
        self.streams, self.block, self.index, self.name, self.kind = streams, block, index, name, kind
        self.view = self.version = self.users = None
        # (the block's updates, the value's checksum), where a change would not be seen otherwise
        self.bits = None
        self.temporary = 0  # how many resident(write="temporary") contexts give it memory of its own

    def copy(self):
        return self.streams.copy_of(self)

    def __reduce__(self):
        return type(None), ()  # a pickled or copied parameter belongs to no engine


class Absent(StandIn, nn.Parameter):
    """The class of a parameter that is not in memory."""

    def __repr__(self):
        return f"Parameter containing (from drives):\n{self.longshore.copy()!r}"

    def longshore_value(self):
        return nn.Parameter(self.longshore.copy(), self.requires_grad)

    def set_(self, *args, **kwargs):  # PyTorch does not give this one to __torch_function__()
        _refuse(self, "its storage cannot be replaced", _BEFORE)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name == "_has_compatible_shallow_copy_type" and isinstance(args[0], Absent) and args[1].is_meta:
            _refuse(
                args[0], 'module.to("meta") would lose it', 'make another module inside `with torch.device("meta"):`'
            )
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def longshore_call(cls, func, name, first, args, kwargs):
        if name in _OF_FIRST:
            with DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in _DIFFERENTIATE:
            return _DIFFERENTIATE[func](*args, **kwargs)
        if name.startswith("_foreach_") and args and len(args[0]) > 1:
            return one_by_one(func, args, kwargs)
        if name in _OF_OTHERS:
            args, kwargs = args[:1] + tree_map(_shape_of, args[1:]), tree_map(_shape_of, kwargs)
        absents = [a for a in tensors((args, kwargs)) if isinstance(a, Absent)]
        _fetch_if_free(absents)
        present = [p for p in absents if not isinstance(p, Absent)]
        of_data = getattr(getattr(func, "__self__", None), "__name__", "") == "data"
        if isinstance(first, Absent):
            if name == "__get__" and of_data:
                return _copy(first)
            if name == "__set__" and of_data:
                if args[1] is first:  # module.to() that changes nothing
                    return None
                first.set_()
            if name in ("to", "cpu", "float", "bfloat16", first.device.type) and is_that_already(
                name, first, args[1:], kwargs
            ):
                return first
            if name == "copy_" and first.longshore.streams.loading.takes(first, args[1]):
                return first
            if writes(func, kwargs):
                _refuse(first, "a change of it would be lost", _advice(first))
            if name in ("data_ptr", "untyped_storage", "storage", "share_memory_", "pin_memory"):
                _refuse(first, "it has no memory of its own")
        elif present and name == "__get__" and of_data:
            watch(first.longshore)
        make = _copy if name in _COPIES else _copy_for_operation
        copies = {id(p): make(p) for p in absents if isinstance(p, Absent)}
        args, kwargs = tree_map(lambda a: copies.get(id(a), a) if isinstance(a, torch.Tensor) else a, (args, kwargs))
        out = func(*args, **kwargs)
        for p in present:
            out = p.longshore.streams.places.copy_out(out, absents, lambda t, p=p: _copy_view(t, p))
            p.longshore.streams.retire([p.longshore.block])
        return out


def _shape_of(t):
    """A tensor of an absent parameter's shape and dtype, without memory."""
    return torch.empty((), dtype=t.dtype, device=t.device).expand(t.shape) if isinstance(t, Absent) else t


def _fetch_if_free(absents):
    """In forward and backward: fetches the blocks of parameters that an operation uses, one into each slot."""
    slots = {}
    for p in absents:
        block = p.longshore.block
        if slots.setdefault(id(block.slot), block) is block:
            p.longshore.streams.fetch_if_free(block)


def one_by_one(func, args, kwargs):
    """A _foreach_ function, for one tensor after the other, so that one copy at a time is in memory."""

    def nth(given, n):
        return [given[n]] if isinstance(given, (list, tuple)) else given

    outs = [func(*[nth(a, n) for a in args], **{k: nth(v, n) for k, v in kwargs.items()}) for n in range(len(args[0]))]
    return None if outs[0] is None else [t for out in outs for t in out]


def tensors(tree):
    return [a for a in tree_leaves(tree) if isinstance(a, torch.Tensor)]


def _copy(p):
    return fetched(p.longshore.copy(), p.longshore.name, _advice(p))


def _copy_for_operation(p):
    """A copy whose gradient is the parameter's."""
    handle = p.longshore
    return fetched(_Read.apply(p, handle), handle.name, _advice(p), (handle, handle.block.updates))


def _copy_view(t, p):
    """Copies a view that was made in forward, where its block may be evicted."""
    out = t.clone()
    if not t.requires_grad:
        return fetched(out, p.longshore.name, IN_PASS)
    p.longshore.streams.inside.view_copies.append((out, version_of(out), p.longshore))
    return out


def _advice(p):
    return IN_PASS if p.longshore.streams.inside.modules else CHANGE


def is_that_already(name, p, args, kwargs):
    """Whether Tensor.to() or the like would return the parameter itself."""
    asked = [{"float": torch.float32, "bfloat16": torch.bfloat16, "to": None}.get(name, name), *args]
    asked += [v for k, v in kwargs.items() if k not in ("copy", "non_blocking")]
    flags = [a for a in args if isinstance(a, bool)]  # non_blocking, copy
    if kwargs.get("copy", len(flags) > 1 and flags[1]):
        return False
    for a in asked:
        if isinstance(a, torch.dtype):
            same = a == p.dtype
        elif isinstance(a, torch.Tensor):
            same = a.dtype == p.dtype and a.device == p.device
        elif isinstance(a, torch.memory_format):
            same = a is torch.preserve_format
        else:
            same = a is None or isinstance(a, bool) or _is_place(torch.device(a), p.device)
        if not same:
            return False
    return True


def _is_place(device, of_p):
    """Whether a device is a parameter's. Accelerate gives each rank a CPU with a number, which is the same one."""
    return device.type == of_p.type and (device.index in (None, of_p.index) or device.type == "cpu")


def _refuse(p, why, advice=_ADVICE):
    raise AbsentParameterError(f"{p.longshore.name}: its value lies on the drives, and {why}; {advice}")
