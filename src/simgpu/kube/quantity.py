"""Amounts as Kubernetes writes them: 8, 500m, 1k, 128Gi, 12e6. Read exactly, and compared by value and never as text.

The API server rounds away from zero to a billionth, caps what has a binary suffix at 63 bits, and writes most amounts
in another form than they came in: 1000 becomes 1k.
"""

from __future__ import annotations

import re
from fractions import Fraction

_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_SCALES = {suffix: Fraction(10) ** (3 * place - 9) for place, suffix in enumerate(_DECIMAL)} | {
    f"{letter}i": Fraction(1024) ** place for place, letter in enumerate("KMGTPE", 1)
}
_FORM = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,4})?")
_LONGEST = 64
_LARGEST_EXPONENT = 64
_FINEST = 10**9
_LARGEST_BINARY = 2**63 - 1


def parse(text: str) -> Fraction:
    """An amount; ValueError where it is none, or is written with more digits than anybody needs."""
    found = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise ValueError(f"{text[:_LONGEST]!r}: must be a Kubernetes quantity such as 8, 500m, 1k or 128Gi")
    sign, digits, suffix = found[1], found[2], found[3] or ""
    amount = Fraction(digits.rstrip(".")) * _scale(suffix, text)
    nanos = -(-amount.numerator * _FINEST // amount.denominator)  # rounded up
    amount = Fraction(nanos, _FINEST)
    if suffix.endswith("i"):
        amount = min(amount, Fraction(_LARGEST_BINARY))
    return -amount if sign == "-" else amount


def _scale(suffix: str, text: str) -> Fraction:
    if suffix in _SCALES:
        return _SCALES[suffix]
    exponent = int(suffix[1:])
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ValueError(f"{text!r}: the exponent must be from -{_LARGEST_EXPONENT} to {_LARGEST_EXPONENT}")
    return Fraction(10) ** exponent


def count(text: str) -> int:
    """How many of something there are; part of one is one. What is no quantity, or less than nothing, is none."""
    try:
        amount = parse(text)
    except ValueError:
        return 0
    return max(0, -(-amount.numerator // amount.denominator))


def canonical(number: int) -> str:
    """A whole number as the API server writes it: 1000 is 1k."""
    suffixes = _DECIMAL[_DECIMAL.index("") :]
    place = 0
    while number and number % 1000 == 0 and place + 1 < len(suffixes):
        number //= 1000
        place += 1
    return f"{number}{suffixes[place]}"
