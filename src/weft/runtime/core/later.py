"""Weight gradients that a zero-bubble schedule puts off until their pass (arXiv 2401.10241, section 2)."""

from __future__ import annotations

from collections.abc import Callable

import torch

Work = Callable[[], None]


class Later:
    """Work of backward passes: done at once, or with ``collects`` kept until it is taken."""

    def __init__(self) -> None:
        self.collects = False
        self._kept: list[Work] = []

    def do(self, work: Work) -> None:
        """Do it, or keep it."""
        if self.collects:
            self._kept.append(work)
        else:
            work()

    def take(self) -> Work:
        """What does all that was kept, in order."""
        kept, self._kept = self._kept, []

        @torch.no_grad()
        def do() -> None:
            while kept:
                kept.pop(0)()

        return do
