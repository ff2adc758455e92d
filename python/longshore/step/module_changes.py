"""Changes that a pass makes to modules: finds them, undoes them, and reapplies them for their micro-batch.

Micro-batches can take turns only if nothing but tensors goes from one block to the next. So at each turn Longshore
compares the modules with what they were when the step began: attributes, the contents of containers and plain objects
among them, hooks, replaced submodules, train and eval, requires_grad. It compares identities, so that a look at a
module costs a microsecond.
"""

import collections
import itertools
import operator
import types
import weakref

import torch
from torch import nn
from torch.nn.modules import module as _of_all

from ..torch_internals import (
    DisableTorchFunctionSubclass,
    grad_hooks,
    parameters_of,
    post_accumulate_hooks,
    tree_leaves,
)
from .trusted_code import is_of_packages

_MAPPINGS = {dict, collections.OrderedDict, collections.defaultdict, collections.Counter}
_CONTAINERS = {*_MAPPINGS, list, set, collections.deque}
_EQUAL = {bool, int, float, complex, str, bytes, types.MethodType}  # types compared by value instead of identity
_CODE = type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType
_CLOSED = (torch.Tensor, nn.Module, *_CODE, *weakref.ProxyTypes)
_IGNORED_ATTRIBUTES = """_state_dict_hooks _state_dict_pre_hooks _load_state_dict_pre_hooks
    _load_state_dict_post_hooks""".split()
_MOST, _DEEP = 4096, 3  # limits of the search: entries of a container, and levels of nested containers
_GONE = object()


class _Place:
    """A container and its contents at the start. where: its name in the model. by_name: whether entries are compared
    one by one, as a module's attributes are."""

    __slots__ = ("container", "before", "where", "by_name")

    def __init__(self, container, where, by_name):
        self.container, self.before, self.where, self.by_name = container, container.copy(), where, by_name

    def changes(self):
        """Returns [(self, key, value now, value before)]; key None: the whole container."""
        now, before = self.container, self.before
        if not self.by_name:
            if isinstance(now, set):
                same = now == before
            else:
                same = len(now) == len(before) and not any(map(_differ, _flat(now), _flat(before)))
            return [] if same else [(self, None, now.copy(), before)]
        pairs = [
            (key, now.get(key, _GONE), before.get(key, _GONE))
            for key in [*now, *(key for key in before if key not in now)]
        ]
        return [(self, key, is_now, was) for key, is_now, was in pairs if _differ(is_now, was)]

    def put(self, key, value):
        if self.by_name and value is _GONE:
            self.container.pop(key, None)
        elif self.by_name:
            self.container[key] = value
        else:
            self.container.clear()
            self.container.extend(value) if hasattr(self.container, "extend") else self.container.update(value)

    def accept(self, key, value):
        """Makes a value the one to compare with from here on."""
        if not self.by_name:
            self.before = value
        elif value is _GONE:
            self.before.pop(key, None)
        else:
            self.before[key] = value


class _OfClass(_Place):
    """The attributes of a module's class."""

    __slots__ = ("kind",)

    def __init__(self, kind):
        super().__init__(vars(kind), kind.__name__, True)
        self.kind = kind

    def put(self, key, value):
        delattr(self.kind, key) if value is _GONE else setattr(self.kind, key, value)


class _Group:
    """The places in one layer's modules, or in everything outside of layers."""

    def __init__(self):
        self.places, self._views = [], []

    def add(self, place):
        self.places.append(place)
        self._views.append(_flat(place.container))

    def _objects(self):
        return itertools.chain(itertools.chain.from_iterable(self._views), (_GONE,))

    def note(self):
        self._noted = [*self._objects()]  # not their ids, which Python reuses

    def same(self):
        return all(map(operator.is_, self._objects(), self._noted))


class Found:
    """The changes that a pass has made.

    private: changes that other passes never see: tensors of its graph (a router's loss), and a replaced `forward` (by
    which transformers 4 collects hidden states). changes: all others. groups: the groups that have any."""

    def __init__(self):
        self.private, self.changes, self.groups = [], [], set()


class ModuleChanges:
    """Compares a model's modules with what they were when this was made."""

    def __init__(self, model, layers):
        """layers: the modules at whose gates micro-batches take turns, in their order."""
        self.rest, self.by_layer, self._seen, self._root = _Group(), {}, set(), type(model).__name__
        inside = {}
        for number, layer in enumerate(layers):
            self.by_layer[layer] = number, _Group()
            for m in layer.modules():
                inside.setdefault(m, []).append(self.by_layer[layer][1])
        self.groups = [self.rest, *(group for _, group in self.by_layer.values())]
        with DisableTorchFunctionSubclass():
            self._parameters = list(model.named_parameters())
            for name, m in model.named_modules():
                group, *others = inside.get(m, [self.rest])
                for place in self._add_module(group, m, name):
                    for other in others:  # the module belongs to several layers
                        other.add(place)
            self._trains = self._flags()
        for kind in {kind for m in model.modules() for kind in type(m).__mro__ if not is_of_packages(kind.__module__)}:
            self.rest.add(_OfClass(kind))
        for name, hooks in vars(_of_all).items():
            if name.startswith("_global_") and type(hooks) in _CONTAINERS:
                self._add(self.rest, hooks, "torch.nn.modules.module", _DEEP)
        for group in self.groups:
            group.note()

    def _add_module(self, group, module, name):
        """Returns the places that belong to the module itself."""
        here, first = name or self._root, len(group.places)
        self._add(group, vars(module), here, 0, by_name=True)
        for attribute, value in vars(module).items():
            if attribute not in _IGNORED_ATTRIBUTES:
                self._look_into(group, value, f"{here}.{attribute}", _DEEP)
        for parameter in parameters_of(module).values():
            if parameter is not None:
                for hooks in (grad_hooks(parameter), post_accumulate_hooks(parameter)):
                    if type(hooks) in _CONTAINERS:
                        self._add(group, hooks, f"{here}: a hook of a parameter", 0)
        return [place for place in group.places[first:] if place.container is vars(module) or not place.by_name]

    def _look_into(self, group, value, where, deep):
        if type(value) in _CONTAINERS:
            self._add(group, value, where, deep)
        elif not isinstance(value, _CLOSED) and not type(value).__module__.startswith("longshore"):
            attributes = getattr(value, "__dict__", None)
            if type(attributes) is dict:
                self._add(group, attributes, where, deep, by_name=True)

    def _add(self, group, container, where, deep, by_name=False):
        """Adds a container's place to a group, and looks into its values, deep levels down."""
        if id(container) in self._seen or len(container) > _MOST:
            return
        self._seen.add(id(container))
        place = _Place(container, where, by_name)
        group.add(place)
        if deep:
            for value in _flat(place.before):
                self._look_into(group, value, where, deep - 1)

    def _flags(self):
        with DisableTorchFunctionSubclass():
            return [p.requires_grad for _, p in self._parameters]

    def holds(self):
        """Whether nothing has changed since this was made."""
        return all(group.same() for group in self.groups) and self._flags() == self._trains

    def revert(self, groups=None):
        """Undoes all changes. Returns them as a Found. groups: where to look; None: everywhere."""
        found = Found()
        for group in self.groups if groups is None else groups:
            if group.same():
                continue
            for change in [change for changed in group.places for change in changed.changes()]:
                place, key, now, was = change
                (found.private if _is_private(key, now, was) else found.changes).append(change)
                found.groups.add(group)
                place.put(key, was)
            group.note()
        if groups is None and (flags := self._flags()) != self._trains:
            found.changes.append((self, None, flags, self._trains))
            self._put_flags(self._trains)
        return found

    def changed(self, layer):
        """Returns the changed places of a layer, as {(id of the place, key)}."""
        group = self.by_layer[layer][1]
        return (
            set() if group.same() else {(id(place), key) for place in group.places for _, key, _, _ in place.changes()}
        )

    def accept(self, layer, before, again):
        """A layer's forward has ended: the next micro-batch, whose turn in this layer comes next, sees the layer's
        changes. If a checkpoint recomputed the layer (again), it sees changes of tensors only. before: changed() when
        the forward began."""
        group = self.by_layer[layer][1]
        if not group.same():
            for place, key, now, was in [change for changed in group.places for change in changed.changes()]:
                kept = not again or _holds_tensors(now) or _holds_tensors(was)
                if kept and (id(place), key) not in before and not _is_private(key, now, was):
                    place.accept(key, now)

    def name(self, change):
        place, key, now, was = change
        if place is self:
            return f"requires_grad of {next(n for (n, _), a, b in zip(self._parameters, now, was) if a != b)}"
        return place.where if key is None else f"{place.where}.{key}"

    def reapply(self, changes):
        """Makes changes of a Found again."""
        for place, key, now, _ in changes:
            if place is self:
                self._put_flags(now)
            else:
                place.put(key, now)

    def _put_flags(self, flags):
        with DisableTorchFunctionSubclass():
            for (_, p), flag in zip(self._parameters, flags):
                if p.requires_grad != flag:
                    p.requires_grad = flag


def _flat(container):
    return container.values() if hasattr(container, "values") else container


def _differ(a, b):
    if a is b:
        return False
    if type(a) is tuple and type(b) is tuple and len(a) == len(b):
        return any(map(_differ, a, b))
    return not (type(a) is type(b) and type(a) in _EQUAL and a == b)


def _leaves(value):
    return [] if value is _GONE else tree_leaves(list(value) if isinstance(value, (set, collections.deque)) else value)


def _holds_tensors(value):
    return any(isinstance(t, torch.Tensor) for t in _leaves(value))


def _is_private(key, now, was):
    """Whether a change only adds or removes tensors of a pass's own graph, or makes a container to collect them in."""
    new, old = _leaves(now), _leaves(was)
    other = [t for t in new if not any(t is o for o in old)] + [t for t in old if not any(t is n for n in new)]
    graphs = [isinstance(t, torch.Tensor) and t.grad_fn is not None for t in other]
    if key == "forward":
        return True
    if key is not None and any(graphs):  # an attribute that is None, or a number, until a pass sets the tensor
        return all(graph or t is None or type(t) in (int, float) for t, graph in zip(other, graphs))
    return all(graphs) and (bool(graphs) or isinstance(now, (list, tuple, dict)))
