from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.solvers import divisors, largest_divisor


@given(number=st.integers(1, 3000), most=st.integers(1, 4000))
def test_as_by_trial(number: int, most: int) -> None:
    tried = [n for n in range(1, number + 1) if number % n == 0]
    assert list(divisors(number)) == tried
    assert largest_divisor(number, most) == max(n for n in tried if n <= most)
