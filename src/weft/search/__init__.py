"""Rank layouts: spaces, their enumeration and the search."""

from weft.search.ranking import Advice, Count, Plan, distinct, plan
from weft.search.space import FOUR_D, SPACES, STANDARD, WIDE, Space, runnable

__all__ = ["FOUR_D", "SPACES", "STANDARD", "WIDE", "Advice", "Count", "Plan", "Space", "distinct", "plan", "runnable"]
