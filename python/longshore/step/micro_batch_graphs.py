"""The autograd graphs of several micro-batches: keeps their gradients apart in one backward pass, and orders them.

Autograd sums the gradients of a parameter in the parameter's accumulation node. Each parameter gets a new node in each
turn, marked with its micro-batch. If a micro-batch uses a parameter in several turns, the sum of the later turn is
handed to the node of the earlier one, as if both were one node.

Autograd runs nodes by sequence number, the largest first, and each thread counts its own. The nodes of the first
micro-batch get the largest numbers, so that its backward runs first.
"""

import torch

from ..torch_internals import DisableTorchFunction, accumulation_node, current_node, next_sequence_number

_MARK = "longshore"  # key in a node's metadata: (number of the micro-batch, number of the turn)
_data = torch.Tensor.data


class _HandOver(torch.autograd.Function):
    """A node at the end of a turn. In backward it hands sums of later turns to the parameters' nodes of this one."""

    @staticmethod
    def forward(ctx, sums, keys, *parameters):
        ctx.sums, ctx.keys = sums, keys
        return torch.zeros((), device=parameters[0].device)

    @staticmethod
    def backward(ctx, gradient):
        return None, None, *(ctx.sums.pop(key, None) for key in ctx.keys)


class Graphs:
    """The graphs of one step."""

    def __init__(self, count, turn_nodes):
        """turn_nodes: the largest number of nodes of a turn, for each round of the step before."""
        self.count, self.expected, self.turn_nodes = count, turn_nodes, []
        # each micro-batch's last sequence number; the first one of this round; the micro-batch with the last turn
        self.ends, self.first, self.last = [0] * count, 0, count
        self.turn = 0
        # whether backward finishes one micro-batch's turn before it begins the next one's; if not, they interleave
        self.separate = False
        self._shown = {}  # of this turn, by a parameter's id: (parameter, its node)
        # by (micro-batch, parameter's id): (the last turn that used it, that turn's _HandOver output)
        self._used = {}
        self._follows = set()  # (micro-batch, id, turn) where an earlier turn used the parameter too
        self._sums = {}  # by (micro-batch, id): the sum of a later turn
        self._roots = [{} for _ in range(count)]  # of each micro-batch, by turn: _HandOver outputs to differentiate

    def begin_turn(self, number, sequential):
        """sequential: the micro-batch runs to its end, and has a backward pass of its own."""
        if number <= self.last:
            self.first, before = max(self.ends), self.turn_nodes[-1:]
            self.turn_nodes.append(1)
            self.each = max([1, *(self.expected[len(self.turn_nodes) - 1 :][:1] or before)]) if self.separate else 1
        self.last, self.turn = number, self.turn + 1
        with DisableTorchFunction(), torch.enable_grad():
            x = torch.zeros((), device="cpu", requires_grad=True)
            for _ in range(
                0 if sequential else self.first + (self.count - 1 - number) * self.each - next_sequence_number()
            ):
                x.t()  # uses up a sequence number
        self._began = next_sequence_number()

    def show(self, number, parameters):
        """Gives parameters new nodes, marked with the micro-batch whose turn it is."""
        with DisableTorchFunction(), torch.enable_grad():
            for p in parameters:
                if p.requires_grad and id(p) not in self._shown:
                    data = _data.__get__(p)
                    # assigning data of another dtype detaches the parameter from its node
                    _data.__set__(p, torch.empty(0, dtype=torch.float64, device=p.device))
                    _data.__set__(p, data)
                    node = accumulation_node(p)
                    node.metadata[_MARK] = number, self.turn
                    self._shown[id(p)] = p, node

    def end_turn(self, number):
        """Adds a _HandOver node for the parameters that this turn used."""
        parameters, self._shown = [p for p, _ in self._shown.values()], {}  # from here on only graphs hold the nodes
        with DisableTorchFunction(), torch.enable_grad():
            used = [p for p in parameters if p.requires_grad and _MARK in accumulation_node(p).metadata]
            if used:
                keys = [(number, id(p)) for p in used]
                handed = _HandOver.apply(self._sums, keys, *used)
                for key in keys:
                    if key in self._used:
                        turn, root = self._used[key]
                        self._roots[number][turn] = root
                        self._follows.add((*key, self.turn))
                    self._used[key] = self.turn, handed
        torch.clear_autocast_cache()  # its casts belong to this graph
        self.ends[number] = next_sequence_number()
        self.turn_nodes[-1] = max(self.turn_nodes[-1], self.ends[number] - self._began)

    def roots(self, number):
        """The tensors to differentiate together with a micro-batch's loss."""
        return list(self._roots[number].values())

    def take(self, p, g):
        """Takes the sum g of a parameter's node. Returns (micro-batch or None if unknown, g or None if an earlier turn
        adds to it)."""
        number, turn = current_node().metadata.get(_MARK, (None, None))
        if (number, id(p), turn) not in self._follows:
            return number, g
        self._sums[number, id(p)] = g
        return number, None
