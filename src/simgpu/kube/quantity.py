"""Kubernetes quantities: 8, 500m, 1k, 128Gi, 12e6. Parsed exactly, and compared by value, never as text.

The API server rounds away from zero to a billionth, caps quantities with a binary suffix at 63 bits, and rewrites most
in a canonical form: 1000 becomes 1k.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction

_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_SCALES = {suffix: Fraction(10) ** (3 * place - 9) for place, suffix in enumerate(_DECIMAL)} | {
    f"{letter}i": Fraction(1024) ** place for place, letter in enumerate("KMGTPE", 1)
}
_FORM = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,4})?")
_MAX_LENGTH = 64
_MAX_EXPONENT = 64
_NANO = 10**9
_MAX_BINARY = 2**63 - 1


def parse(text: str) -> Fraction:
    """Parse a quantity; ValueError if it is not one, or longer than 64 characters."""
    found = _FORM.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if found is None:
        raise ValueError(f"{text[:_MAX_LENGTH]!r}: must be a Kubernetes quantity such as 8, 500m, 1k or 128Gi")
    sign, digits, suffix = found[1], found[2], found[3] or ""
    amount = Fraction(digits.rstrip(".")) * _scale(suffix, text)
    nanos = -(-amount.numerator * _NANO // amount.denominator)  # rounded up
    amount = Fraction(nanos, _NANO)
    if suffix.endswith("i"):
        amount = min(amount, Fraction(_MAX_BINARY))
    return -amount if sign == "-" else amount


def _scale(suffix: str, text: str) -> Fraction:
    if suffix in _SCALES:
        return _SCALES[suffix]
    exponent = int(suffix[1:])
    if abs(exponent) > _MAX_EXPONENT:
        raise ValueError(f"{text!r}: the exponent must be from -{_MAX_EXPONENT} to {_MAX_EXPONENT}")
    return Fraction(10) ** exponent


@functools.lru_cache(1024)  # the same few, for every look at a pod
def count(text: str) -> int:
    """Parse a quantity as a count, rounded up; 0 for a negative one or text that is not a quantity."""
    try:
        amount = parse(text)
    except ValueError:
        return 0
    return max(0, -(-amount.numerator // amount.denominator))


def canonical(number: int) -> str:
    """Format a whole number as the API server does: 1000 is 1k."""
    suffixes = _DECIMAL[_DECIMAL.index("") :]
    place = 0
    while number and number % 1000 == 0 and place + 1 < len(suffixes):
        number //= 1000
        place += 1
    return f"{number}{suffixes[place]}"


def binary(number: int) -> str:
    """Format a whole number with the largest binary suffix that fits, as the API server does: 1024 is 1Ki."""
    suffix = ""
    for letter in "KMGTPE":
        if not number or number % 1024:
            break
        number //= 1024
        suffix = f"{letter}i"
    return f"{number}{suffix}"
