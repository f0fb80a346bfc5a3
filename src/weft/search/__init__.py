"""Rank layouts: spaces, their enumeration and the search."""

from weft.search.enumeration import FOUR_D, SPACES, STANDARD, WIDE, ZERO_BUBBLE, Space, runnable
from weft.search.ranking import Advice, Count, Plan, distinct, plan
from weft.search.ties import Recommendation, Tie

__all__ = [
    "FOUR_D",
    "SPACES",
    "STANDARD",
    "WIDE",
    "ZERO_BUBBLE",
    "Advice",
    "Count",
    "Plan",
    "Recommendation",
    "Space",
    "Tie",
    "distinct",
    "plan",
    "runnable",
]
