"""Whether two samples differ by more than their noise: Welch's t-test on logarithms.

Speeds and latencies vary by factors rather than by amounts, so their logarithms are compared: a difference of these is
a ratio. The interval for the ratio contains the true one with the given confidence, if the values are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

LEAST_SPREAD = 0.002
"""Values that happen to be (almost) the same say little about the spread of others."""


class Interval(NamedTuple):
    """A ratio, and the interval that the true one is in."""

    low: float
    ratio: float
    high: float

    @property
    def contains_one(self) -> bool:
        return self.low <= 1.0 <= self.high


def ratio_of(old: Sequence[float], new: Sequence[float], confidence: float) -> Interval:
    """Compares at least two positive values with at least two others."""
    first, second = [math.log(value) for value in old], [math.log(value) for value in new]
    difference = _mean(second) - _mean(first)
    parts = _variance(first) / len(first), _variance(second) / len(second)
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(first) - 1) + parts[1] ** 2 / (len(second) - 1))
    reach = quantile(freedom, confidence) * error
    return Interval(math.exp(difference - reach), math.exp(difference), math.exp(difference + reach))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return max(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1), LEAST_SPREAD**2)


def block_means(values: Sequence[float | None], blocks: int) -> list[float]:
    """Returns the means of stretches of a series. Neighbours in a series depend on each other, long stretches hardly
    do: their means are compared like independent measurements."""
    means = []
    for number in range(blocks):
        first, last = len(values) * number // blocks, len(values) * (number + 1) // blocks
        known = [value for value in values[first:last] if value is not None]
        if known:
            means.append(_mean(known))
    return [mean for mean in means if mean > 0]


# --------------------------------------------------------------------------------------------------- Student's t


def quantile(freedom: float, confidence: float) -> float:
    """Returns the distance from 0 within which Student's t is with this confidence."""
    low, high = 0.0, 1e6
    for _ in range(100):
        middle = (low + high) / 2
        if _within(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _within(distance: float, freedom: float) -> float:
    """Returns how probable it is that Student's t is not further from 0 than this."""
    return 1 - _beta(freedom / (freedom + distance * distance), freedom / 2, 0.5)


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return scale / a * _continued_fraction(x, a, b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """That of the incomplete beta function, by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    found = d
    for m in range(1, 300):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or tiny)
            c = 1 + term / c or tiny
            found *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return found
