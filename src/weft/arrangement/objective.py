"""What is wanted of a site, as one number to minimise, and as people read it.

Inside, every objective is a score: its value over the value with every job alone on a 1:1 network.
Less is better, and 1 is as if no job met another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.arrangement.site import Goal, Site
from weft.fabric.spec import Floats
from weft.model import model_flops

TIE = 1e-6
"""Weight of the mean where the worst counts."""
OVER = 10.0
"""What exceeding a limit costs."""
HOUR_S = 3600.0
RATES: tuple[Goal, ...] = ("utilization", "dollars_per_token")
"""Objectives that follow from how much all jobs do in a second."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Objective:
    """The objective of a site.

    ``weights`` add up to 1; ``against_s`` are the seconds of each job's iteration alone on a 1:1 network.  ``worth``
    is what one iteration of each job adds: to the seconds of the longest job (iterations to do), or to what is done
    in a second (share of the site's peak, or tokens).  ``scale`` is what the objective comes to at ``against_s``.
    """

    kind: Goal
    weights: Floats
    against_s: Floats
    worth: Floats
    scale: float
    max_slowdown: float

    @classmethod
    def of(cls, site: Site, against_s: Floats) -> Objective:
        """The objective of a site whose jobs take ``against_s`` alone."""
        weights = np.array([job.weight for job in site.jobs])
        worth, scale = np.ones(len(weights)), 1.0
        if site.objective == "makespan":
            worth = np.array([float(job.iterations or 1) for job in site.jobs])
            scale = float((worth * against_s).max())
        elif site.objective == "utilization":
            peak = site.cluster.accelerator.peak_flops
            flops = [model_flops(job.job.model, job.job.recipe) / peak(job.job.recipe.precision) for job in site.jobs]
            worth = np.array(flops) / (sum(site.usable) * site.domain_size)
            scale = float((worth / against_s).sum())
        elif site.objective == "dollars_per_token":
            worth = np.array([float(job.job.recipe.tokens) for job in site.jobs])
            bought = sum(job.domains for job in site.jobs) * (site.domain_size + site.cluster.spares_per_domain)
            scale = bought * site.usd_per_hour / HOUR_S / float((worth / against_s).sum())
        return cls(
            kind=site.objective,
            weights=weights / weights.sum(),
            against_s=against_s,
            worth=worth,
            scale=scale,
            max_slowdown=np.inf if site.max_slowdown is None else site.max_slowdown,
        )

    def score(self, seconds: Floats) -> float:
        """The objective, when each job's iteration takes so many seconds on average."""
        slowdown = seconds / self.against_s
        mean = float(slowdown @ self.weights)
        if self.kind == "slowdown":
            return mean
        if self.kind == "worst":
            return float(slowdown.max()) + TIE * mean
        if self.kind == "makespan":
            return float((self.worth * seconds).max()) / self.scale + TIE * mean
        # Rates: what is done in a second alone, over what is done in a second together.
        return float((self.worth / self.against_s).sum() / (self.worth / seconds).sum())

    def cost(self, seconds: Floats, slowdown: Floats) -> float:
        """What is minimised: the score, and what the worst slowdown is beyond the limit."""
        return self.score(seconds) + self.over(slowdown)

    def over(self, slowdown: Floats) -> float:
        """``OVER`` times what the worst slowdown is beyond the limit."""
        return OVER * max(0.0, float(slowdown.max()) - self.max_slowdown)

    def shown(self, score: float) -> float:
        """What a score means: a slowdown, seconds, a share of the peak, or dollars per token."""
        return self.scale / score if self.kind == "utilization" else self.scale * score

    def score_of(self, value: float) -> float:
        """The score that is shown as ``value``."""
        return self.scale / value if self.kind == "utilization" else value / self.scale

    def text(self, score: float) -> str:
        """What a score means, for people."""
        value = self.shown(score)
        if self.kind == "makespan":
            from weft.units import format_seconds

            return format_seconds(value)
        if self.kind == "utilization":
            return f"{value:.2%}"
        if self.kind == "dollars_per_token":
            return f"${value * 1e6:.4g} per million tokens"
        return f"{value:.4f}"
