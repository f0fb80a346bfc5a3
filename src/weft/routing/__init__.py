"""Which way every flow takes: traffic of jobs, candidate paths, routers, bounds and the controller.

Functions raise ``BadInput`` for input that cannot be used.
"""

from weft.routing.traffic import JobTraffic, job_traffic, merged

__all__ = ["JobTraffic", "job_traffic", "merged"]
