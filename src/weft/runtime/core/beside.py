"""A queue of the device beside that of computation, in which weights are cast and gathered.

PyTorch's rules (its notes on CUDA semantics, and of ``torch.distributed``), of which each is asserted in the tests:

- The queue waits for what computation has queued before it takes anything on.  So parameters are read after they were
  updated; and as memory that is taken in this queue is given out again in it alone, it is given out after computation
  has used it (``record_stream`` would hold it until the host asks again).
- A collective waits for the queue in which it is begun, and who waits for the collective waits for its end.
- Who takes what was cast waits for an event behind the cast, not for all that the queue holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Done:
    """A place in the queue."""

    device: Any
    event: Any

    def wait(self) -> None:
        """What computation queues from here on begins after it."""
        self.device.current_stream().wait_event(self.event)


class Beside:
    """The queue of one rank; the CPU and the meta device have none, and do all at once."""

    def __init__(self, device: torch.device | None = None) -> None:
        queues = device is not None and device.type not in ("cpu", "meta")
        self._device: Any = torch.get_device_module(device) if queues else None
        self._stream: Any = None

    @contextmanager
    def queue(self) -> Iterator[None]:
        """What is done inside is queued beside computation, behind what that has queued."""
        if self._device is None:
            yield
            return
        if self._stream is None:
            self._stream = self._device.Stream()
        self._stream.wait_stream(self._device.current_stream())
        with self._device.stream(self._stream):
            yield

    def done(self) -> Done | None:
        """What was queued until now."""
        return None if self._stream is None else Done(self._device, self._stream.record_event())
