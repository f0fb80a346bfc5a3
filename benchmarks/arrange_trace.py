"""A day of arrivals on one network under five policies: slowdown, queueing, utilization, makespan, CPU seconds.

The day is drawn from a seed, in the manner of clusters for training: arrivals at random (Poisson), most jobs on one
host, some on many, lengths log-normal around half an hour; the load is set by the number of jobs.  The network is a
two-tier Clos whose leaves pass on a quarter (4:1), with leaves of three hosts.

Run: ``python benchmarks/arrange_trace.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import bench
import numpy as np

from weft.arrangement.replay import replay
from weft.arrangement.site import Site, read_site
from weft.arrangement.trace import DAY_S, TraceJob

SEED = 17
HOSTS = (1, 2, 3, 4, 6, 8, 12, 16)
SHARES = (0.40, 0.15, 0.08, 0.12, 0.09, 0.08, 0.04, 0.04)
CASES = (("h100-256", 150),)
TINY = (("h100-128", 6),)


def site(cluster: str) -> Site:
    """A site without jobs."""
    text = (
        f'schema = "weft.site/1"\nname = "{cluster}"\ncluster = "{cluster}"\nfabric = "fat-tree"\n'
        'oversubscription = [4.0]\nradix = 32\n[switches]\nrouting = ["ecmp", "planned"]\nclasses = 8\n'
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.toml"
        path.write_text(text)
        return read_site(path, idle=True)


def day(jobs: int, most: int) -> tuple[TraceJob, ...]:
    """Jobs that arrive over a day, on at most ``most`` hosts of eight each."""
    draw = np.random.default_rng(SEED)
    able = np.array(HOSTS) <= most
    shares = np.array(SHARES) * able / (np.array(SHARES) * able).sum()
    at = np.sort(draw.uniform(0.0, DAY_S, jobs))
    hosts = draw.choice(HOSTS, jobs, p=shares)
    seconds = np.clip(draw.lognormal(np.log(3600.0), 1.0, jobs), 300.0, DAY_S / 2)
    return tuple(
        TraceJob(
            name=f"job-{n}",
            arrival_s=round(float(at[n] - at[0]), 1),
            duration_s=round(float(seconds[n]), 1),
            accelerators=8 * int(hosts[n]),
        )
        for n in range(jobs)
    )


def main() -> None:
    """Replay the days and print a line for every policy."""
    options, figures = bench.parser(__doc__).parse_args(), {}
    for cluster, jobs in TINY if options.tiny else CASES:
        where = site(cluster)
        trace = day(jobs, len(where.host_names) // 2)
        for one in replay(where, trace).outcomes:
            row = one.to_dict()
            key = f"{cluster}_{one.policy.name}".replace(" ", "").replace("+", "_")
            figures |= {f"{key}_{name}": value for name, value in row.items() if name != "policy"}
            figures |= {f"{key}_cpu_s": one.cpu_s}
            print(
                f"{cluster} {one.policy.name:18s} slowdown {row['mean_slowdown']:.4f}, 95 % below"
                f" {row['p95_slowdown']:.4f}; waited {row['mean_queued_s']:.0f} s; utilization"
                f" {row['utilization']:.3f}; makespan {row['makespan_s']:.0f} s; {one.cpu_s:.1f} CPU-s",
                flush=True,
            )
    bench.record(options, figures)


if __name__ == "__main__":
    main()
