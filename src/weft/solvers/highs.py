"""HiGHS without a word on standard output, which carries results."""

from importlib import import_module
from typing import Any


def silent_highs() -> tuple[Any, Any]:
    """The module ``highspy``, and an empty model of one thread that prints nothing.

    HiGHS 1.16 prints its banner while it enables callbacks, that is, within its constructor.  Therefore the flag is
    set before that, not only after.
    """
    highspy: Any = import_module("highspy")

    class Silent(highspy.Highs):  # type: ignore[misc]
        def enableCallbacks(self) -> None:
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()

    model = Silent()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    return highspy, model
