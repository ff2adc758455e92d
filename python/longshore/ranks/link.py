"""Messages between this rank and another one, over a gloo group.

What this relies on, as gloo is in PyTorch 2.4 to 2.15:

- A receive from a named rank ends with an error at once when that rank's process has ended. One from any rank does not,
  so there is a thread for each other rank.
- A send ends once the other rank receives it, so nothing is received into memory that nobody has set aside.
- A wait that runs out closes the connections of its whole group, so limits in time are Ranks', and nothing waits here
  with a limit of its own. cut() closes them by such a wait.
"""

from __future__ import annotations

import datetime
import pickle
import queue
import struct
import threading
from collections.abc import Callable
from typing import Any

import torch

_FRAME = 512  # bytes of the first part of a message, which says how long the others are
_LENGTHS = struct.Struct("<QQ")  # bytes of the note, bytes of what follows it
_ROOM = _FRAME - _LENGTHS.size
_ENDLESS, _AT_ONCE = datetime.timedelta(days=3650), datetime.timedelta(milliseconds=1)
_TAG, _NOBODYS_TAG = 54, 55


def _tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class Link:
    """Messages to and from one other rank, each way in order: a note (any object that pickle knows; the ranks are
    processes of one job, which trust each other) and, after it, bytes.

    Two threads, which hold no lock while they wait: one sends what send() was given, one receives. They end when the
    connection does."""

    def __init__(self, group: Any, rank: int, place: Callable, got: Callable, broken: Callable):
        """group: a ProcessGroupGloo. place(rank, note, bytes): where the bytes after a note go, as a uint8 tensor;
        got(rank, note): they are there, or the note has none; broken(rank, error): nothing is received any more, as
        the connection has ended (ConnectionError) or one of these calls raised. All are called on the thread that
        receives, and must not wait for a message."""
        self.group, self.rank = group, rank
        self._place, self._got, self._broken = place, got, broken
        self.sent_bytes = 0
        self._outgoing: queue.SimpleQueue = queue.SimpleQueue()
        name = f"longshore rank {rank}"
        self._threads = [
            threading.Thread(target=self._sends, name=f"{name}: send", daemon=True),
            threading.Thread(target=self._receives, name=f"{name}: receive", daemon=True),
        ]

    def start(self):
        for thread in self._threads:
            thread.start()

    def send(self, note: Any, data: torch.Tensor | None = None, sent: Callable | None = None) -> None:
        """Sends a note and bytes soon. data: a contiguous uint8 tensor that nobody changes until sent() is called,
        which does not happen once the connection has ended."""
        self._outgoing.put((note, data, sent))

    def cut(self) -> None:
        """Ends the connections of the whole group, so that the threads of this rank end."""
        self._outgoing.put(None)
        try:
            self.group.recv([_tensor(b"\0")], self.rank, _NOBODYS_TAG).wait(_AT_ONCE)
        except RuntimeError:
            pass

    def join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)

    def _sends(self):
        while (message := self._outgoing.get()) is not None:
            note, data, sent = message
            try:
                self._send(pickle.dumps(note), data)
            except RuntimeError:
                return  # the thread that receives says so
            if sent is not None:
                sent()

    def _send(self, note, data):
        follows = 0 if data is None else data.numel()
        frame = _LENGTHS.pack(len(note), follows) + note[:_ROOM]
        parts = [_tensor(frame.ljust(_FRAME, b"\0"))]
        if len(note) > _ROOM:
            parts.append(_tensor(note[_ROOM:]))
        if follows:
            parts.append(data)
        for part in parts:
            self.group.send([part], self.rank, _TAG).wait(_ENDLESS)
            self.sent_bytes += part.numel()

    def _receive(self, into):
        try:
            self.group.recv([into], self.rank, _TAG).wait(_ENDLESS)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from None
        return into

    def _receives(self):
        try:
            frame = torch.empty(_FRAME, dtype=torch.uint8, device="cpu")
            while True:
                said = self._receive(frame).numpy().tobytes()
                length, follows = _LENGTHS.unpack_from(said)
                note = said[_LENGTHS.size : _LENGTHS.size + length]
                if length > _ROOM:
                    rest = torch.empty(length - _ROOM, dtype=torch.uint8, device="cpu")
                    note += self._receive(rest).numpy().tobytes()
                note = pickle.loads(note)
                if follows:
                    self._receive(self._place(self.rank, note, follows))
                self._got(self.rank, note)
        except Exception as error:  # whatever it is, this rank cannot go on
            self._broken(self.rank, error)
