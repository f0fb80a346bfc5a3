"""Random settings of the process of failures, as training runs have them."""

from __future__ import annotations

import random

from weft.reliability.process import Pause, Process, Saving, Slow, Stop

HOUR = 3600.0


def setting(seed: int) -> tuple[Process, Saving]:
    """Failures every 2 to 8 hours, restarts of minutes, repairs of hours; spares, shrinking, slow networks, pauses
    and peers' checkpoints each in about half of them."""
    dice = random.Random(seed)
    mtbf_s = dice.uniform(2.0, 8.0) * HOUR
    peers = dice.random() < 0.5
    stops = []
    kinds = dice.randint(1, 4)
    for i in range(kinds):
        hosts = dice.choice((0, 0, 1, 1, 1, 2))
        stops.append(
            Stop(
                name=f"stop {i}",
                rate=dice.uniform(0.3, 1.7) / kinds / mtbf_s,
                restart_s=dice.uniform(60.0, 900.0),
                hosts=hosts,
                repair_s=dice.uniform(0.5, 4.0) * HOUR if hosts else 0.0,
                severe=not peers or dice.random() < 0.3,
            )
        )
    slow = dice.random() < 0.5
    slows = [Slow(name="link", rate=1 / dice.uniform(2 * HOUR, 40 * HOUR), duration_s=dice.uniform(600.0, 4 * HOUR),
                  speed=dice.uniform(0.6, 1.0)) for _ in range(dice.randint(1, 2) if slow else 0)]  # fmt: skip
    pause = [Pause(name="maintenance", rate=1 / (24 * HOUR), pause_s=dice.uniform(300.0, 1200.0))]
    replicas = dice.choice((0, 0, 16, 32, 64))
    stall_s = dice.uniform(1.0, 60.0)
    interval_s = dice.uniform(200.0, 1500.0)
    process = Process(
        stops=tuple(stops),
        slows=tuple(slows),
        pauses=tuple(pause if dice.random() < 0.5 else ()),
        spares=dice.randint(2 if replicas == 0 else 0, 6),
        speeds=tuple(1.0 - k / replicas for k in range(replicas // 2)) if replicas else (1.0,),
        regrow_s=dice.uniform(60.0, 300.0),
    )
    lag_s = dice.uniform(0.0, 1.0) * min(interval_s, 300.0) if dice.random() < 0.5 else 0.0
    every = dice.choice((2, 4, 8)) if peers else 1
    return process, Saving(interval_s=interval_s, stall_s=stall_s, lag_s=lag_s, every=every)
