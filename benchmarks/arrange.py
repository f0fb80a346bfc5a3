"""What `weft arrange` reaches on four jobs of 256 GPUs and on random sites, and how far from optimal that may be.

Four jobs: three of Llama 3.1 8B and a Mixtral 8x7B, eight hosts of eight H100 each, on a two-tier Clos whose leaves
pass on a quarter.  They lie packed (eight hosts in a row each), on random hosts with ranks in the order of hosts, or
on random hosts in random order.  Hosts stay; from random ones also with ranks in any order, and on any hosts.

Random sites: two to four jobs of GPT-2 on 16 hosts of eight A100, random hosts, which stay, are put in another order,
or move.  No policy alone may be better than the arrangement, nor may it lie below its bound by more than what
counting whole iterations takes off (``WINDOW``).

Run: ``python benchmarks/arrange.py``.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import bench
import numpy as np

from weft.arrangement.bundle import Arrangement
from weft.arrangement.search import Search
from weft.arrangement.site import read_site

Job = tuple[str, str, int]
"""Model, layout and batch."""
LLAMA = "tp=8,dp=8,sp"
FOUR: tuple[Job, ...] = (
    ("llama-3.1-8b", LLAMA, 32),
    ("llama-3.1-8b", LLAMA, 32),
    ("llama-3.1-8b", LLAMA, 64),
    ("mixtral-8x7b", "tp=1,ep=8,pp=4,dp=16", 64),
)
BUDGET_S, TINY_BUDGET_S = 60.0, 2.0
RANDOM_SITES, RANDOM_BUDGET_S, RANDOM_HOSTS = 200, 1.5, 16
WINDOW = 1e-2


def placements() -> dict[str, list[list[int]]]:
    """Hosts of the four jobs."""
    drawn = np.random.default_rng(1).permutation(32)
    return {
        "packed": np.arange(32).reshape(4, -1).tolist(),
        "random_sorted": [sorted(part) for part in drawn.reshape(4, -1).tolist()],
        "random": drawn.reshape(4, -1).tolist(),
    }


def site_text(
    jobs: Sequence[Job],
    cluster: str,
    hosts: list[list[int]],
    may: str,
    *,
    radix: int = 64,
    ratio: float = 4.0,
    routing: Sequence[str] = ("ecmp", "planned"),
) -> str:
    """A site file."""
    lines = ['schema = "weft.site/1"', 'name = "benchmark"', f'cluster = "{cluster}"', 'fabric = "fat-tree"']
    lines += [f"radix = {radix}", f"oversubscription = [{ratio}]"]
    lines += ["[switches]", f"routing = {json.dumps(list(routing))}", "classes = 8"]
    for number, ((model, layout, batch), held) in enumerate(zip(jobs, hosts, strict=True)):
        lines += ["[[jobs]]", f'name = "job-{number}"', f'model = "{model}"', f'layout = "{layout}"']
        lines += [f"batch = {batch}", f"hosts = {json.dumps([f'host-{host}' for host in held])}", f'may = "{may}"']
    return "\n".join(lines) + "\n"


def arranged(text: str, budget_s: float) -> Arrangement:
    """The arrangement of a site file's text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "site.toml"
        path.write_text(text, encoding="utf-8")
        site = read_site(path)
    return Search(site, budget_s=budget_s).run()


def four_jobs(*, tiny: bool) -> dict[str, float]:
    """Every placement and freedom."""
    cases = [(kind, "stay") for kind in placements()] + [("random", "reorder"), ("random", "move")]
    figures = {}
    for kind, may in cases[:1] if tiny else cases:
        begin = time.process_time()
        found = arranged(site_text(FOUR, "h100-256", placements()[kind], may), TINY_BUDGET_S if tiny else BUDGET_S)
        seconds = time.process_time() - begin
        name = f"four_{kind}_{may}"
        gap = found.certificate.gap(found.best.cost)
        reached = {policy: float(timed.slowdown.mean()) for policy, timed in found.policies.items()}
        words = ", ".join(f"{policy} {value:.4f}" for policy, value in reached.items())
        print(f"{name:28s} {words}; gap {gap:.2%} ({found.certificate.proof}), {seconds:.1f} CPU-s", flush=True)
        figures |= {f"{name}_{policy}": value for policy, value in reached.items()}
        figures |= {f"{name}_gap": gap, f"{name}_cpu_s": seconds, f"{name}_bound": found.certificate.objective}
    return figures


def random_site(seed: int) -> str:
    """Jobs until the hosts are taken, or four."""
    draw = np.random.default_rng(seed)
    jobs: list[Job] = []
    sizes: list[int] = []
    while RANDOM_HOSTS - sum(sizes) >= 2 and len(jobs) < 4:
        hosts = int(draw.integers(2, min(RANDOM_HOSTS - sum(sizes), 6) + 1))
        layout = f"tp=4,dp={2 * hosts}" if draw.random() < 0.5 else f"dp={8 * hosts}"
        jobs.append(("gpt2-124m", layout, 8 * hosts * int(draw.integers(1, 4))))
        sizes.append(hosts)
    order = draw.permutation(RANDOM_HOSTS)[: sum(sizes)]
    held = [part.tolist() for part in np.split(order, np.cumsum(sizes)[:-1])]
    return site_text(jobs, "a100-128", held, ("stay", "reorder", "move")[seed % 3])


def random_sites(count: int) -> dict[str, float]:
    """Gaps, and what is gained over each policy alone."""
    gaps, gains, worse, below, seconds = [], [], 0, 0, []
    for seed in range(count):
        begin = time.process_time()
        found = arranged(random_site(seed), RANDOM_BUDGET_S)
        seconds.append(time.process_time() - begin)
        best, alone = found.best.cost, [one.cost for name, one in found.policies.items() if name != "arrange"]
        worse += best > min(alone) + 1e-12
        below += found.certificate.objective > best * (1 + WINDOW)
        gaps.append(found.certificate.gap(best))
        gains.append([found.policies["hashed"].cost / best - 1, min(alone) / best - 1])
    hashed, single = np.array(gains).T
    figures = {
        "random_sites": count,
        "random_worse_than_a_policy": worse,
        "random_below_the_bound": below,
        "random_optimal": int((np.array(gaps) == 0).sum()),
        "random_gap_median": float(np.median(gaps)),
        "random_gap_p90": float(np.quantile(gaps, 0.9)),
        "random_gap_worst": max(gaps),
        "random_gain_over_hashed_mean": float(hashed.mean()),
        "random_gain_over_hashed_most": float(hashed.max()),
        "random_gain_over_best_single_mean": float(single.mean()),
        "random_gain_over_best_single_most": float(single.max()),
        "random_cpu_s_mean": float(np.mean(seconds)),
    }
    for name, value in figures.items():
        print(f"{name:36s} {value:.4g}")
    if worse or below:
        raise SystemExit("an arrangement is worse than a policy alone, or below its bound")
    return figures


def main() -> None:
    """Four jobs, then random sites."""
    options = bench.parser(__doc__).parse_args()
    figures = four_jobs(tiny=options.tiny)
    figures |= random_sites(2 if options.tiny else RANDOM_SITES)
    bench.record(options, figures)


if __name__ == "__main__":
    main()
