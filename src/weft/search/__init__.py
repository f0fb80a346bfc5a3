"""Rank layouts: spaces, their enumeration and the search."""

from weft.search.enumeration import FOUR_D, SPACES, STANDARD, WIDE, Space, runnable
from weft.search.ranking import Plan, distinct, plan

__all__ = ["FOUR_D", "SPACES", "STANDARD", "WIDE", "Plan", "Space", "distinct", "plan", "runnable"]
