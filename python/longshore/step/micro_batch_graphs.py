"""Graphs of several micro-batches that one backward pass goes through, so that each has its own sum of gradients, and
one comes after the other.

Autograd adds up what comes to a parameter in its accumulating node. In each turn of a micro-batch parameters get a new
one, which says whose it is. Where one micro-batch uses a parameter in several turns, the sum of a later one comes first
to the node of the one before, as it would to a node that they had in common. Nodes run in the order of their numbers,
the last first, and every thread counts its own: those of the first micro-batch get the largest ones.
"""

import torch

from ..torch_internals import DisableTorchFunction, current_node, next_sequence_number

_MARK = "longshore"  # of a node: (number of the micro-batch, of the turn)
_data = torch.Tensor.data


class _HandOver(torch.autograd.Function):
    """At the end of a turn: takes the sums of later turns to the nodes of this one."""

    @staticmethod
    def forward(ctx, sums, keys, *parameters):
        ctx.sums, ctx.keys = sums, keys
        return torch.zeros((), device=parameters[0].device)

    @staticmethod
    def backward(ctx, gradient):
        return None, None, *(ctx.sums.pop(key, None) for key in ctx.keys)


class Graphs:
    def __init__(self, count, turn_nodes):
        """turn_nodes: how many nodes the turns of each round have had at most, in the step before."""
        self.count, self.expected, self.turn_nodes = count, turn_nodes, []
        # of each, how far it has counted; where this round begins; who had the last turn
        self.ends, self.first, self.last = [0] * count, 0, count
        self.turn = 0
        # whether a turn is to end before that of the next micro-batch begins, in backward too; otherwise they go side
        # by side
        self.apart = False
        self._shown = {}  # in this turn, by a parameter's id: (parameter, its node)
        # by (number of the micro-batch, parameter's id): in which turn last, and what is handed over to that
        self._used = {}
        self._follows = set()  # (number, id, turn) of those that were used in an earlier turn, too
        self._sums = {}  # by (number, id): of a turn that follows
        self._roots = [{} for _ in range(count)]  # of what is handed over

    def begin_turn(self, number, alone):
        """alone: it goes on to its end, and through a backward pass of its own."""
        if number <= self.last:
            self.first, before = max(self.ends), self.turn_nodes[-1:]
            self.turn_nodes.append(1)
            self.each = max([1, *(self.expected[len(self.turn_nodes) - 1:][:1] or before)]) if self.apart else 1
        self.last, self.turn = number, self.turn + 1
        with DisableTorchFunction(), torch.enable_grad():
            x = torch.zeros((), requires_grad=True)
            for _ in range(0 if alone else self.first + (self.count - 1 - number) * self.each - _counted()):
                x.t()  # counts one on
        self._began = _counted()

    def show(self, number, parameters):
        """The micro-batch whose turn it is may compute with these."""
        with DisableTorchFunction(), torch.enable_grad():
            for p in parameters:
                if p.requires_grad and id(p) not in self._shown:
                    data = _data.__get__(p)
                    # data of another kind part it from its node
                    _data.__set__(p, torch.empty(0, dtype=torch.float64, device=p.device))
                    _data.__set__(p, data)
                    node = _node(p)
                    node.metadata[_MARK] = number, self.turn
                    self._shown[id(p)] = p, node

    def end_turn(self, number):
        parameters, self._shown = [p for p, _ in self._shown.values()], {}  # without them only graphs keep the nodes
        with DisableTorchFunction(), torch.enable_grad():
            used = [p for p in parameters if p.requires_grad and _MARK in _node(p).metadata]
            if used:
                keys = [(number, id(p)) for p in used]
                handed = _HandOver.apply(self._sums, keys, *used)
                for key in keys:
                    if key in self._used:
                        turn, root = self._used[key]
                        self._roots[number][turn] = root
                        self._follows.add((*key, self.turn))
                    self._used[key] = self.turn, handed
        torch.clear_autocast_cache()  # its casts are of this graph
        self.ends[number] = _counted()
        self.turn_nodes[-1] = max(self.turn_nodes[-1], self.ends[number] - self._began)

    def roots(self, number):
        """What is differentiated beside the loss of a micro-batch."""
        return list(self._roots[number].values())

    def take(self, p, g):
        """A node of a parameter has the sum g. Returns the number of its micro-batch (None: it is not known), and g, or
        None where more is to come."""
        number, turn = current_node().metadata.get(_MARK, (None, None))
        if (number, id(p), turn) not in self._follows:
            return number, g
        self._sums[number, id(p)] = g
        return number, None


def _counted():
    return next_sequence_number()


def _node(p):
    return p.view_as(p).grad_fn.next_functions[0][0]
