"""How hypothesis draws: the same examples in every run, and no deadline, since machines are shared.

A test states ``max_examples`` only where an example is dear.  ``HYPOTHESIS_PROFILE=thorough`` draws more examples
(CI runs it), ``HYPOTHESIS_PROFILE=explore`` draws new ones.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=50,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.large_base_example],
)
settings.register_profile("thorough", settings.get_profile("repeatable"), max_examples=300)
settings.register_profile("explore", settings.get_profile("thorough"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
