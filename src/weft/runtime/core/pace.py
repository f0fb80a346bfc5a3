"""A rank that computes more slowly than it could, as one on a hot or a busy host does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Pace:
    """Makes what a rank computes last ``factor`` times as long as it does.

    Computation is all that happens between two waits for other ranks.  What it took is measured by the wall's clock,
    and the rest is slept before the rank next issues or waits for a collective: others see nothing earlier.  The rank
    sleeps and does not spin, so that ranks that share its cores are as fast as before.

    Attributes:
        factor: at least 1; may change between steps.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self._since = 0.0
        self._owed = 0.0

    def resume(self) -> None:
        """Compute from here on; what has passed was waiting."""
        if self.factor > 1.0:
            self._since = time.perf_counter()

    def pay(self) -> None:
        """Sleep for what was computed since; a sleep that was too long shortens the next."""
        if self.factor <= 1.0:
            return
        now = time.perf_counter()
        self._owed += (self.factor - 1.0) * (now - self._since)
        self._since = now
        if self._owed > 0.0:
            time.sleep(self._owed)
            self._since = time.perf_counter()
            self._owed -= self._since - now

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What is inside is computed, what is outside is not."""
        self.resume()
        yield
        self.pay()
