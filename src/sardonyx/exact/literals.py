"""Recognize a rounded literal as the real number it stands for: √2, 1/√2, 2/π, √(2/π), 1/6, 1/√d.

A number is recognized only if it is that real number correctly rounded to its type, so the distance is at most half a
unit in the last place. Reading literals in this way never makes two different literals equal by itself: the same rule
reads both sides of a rewrite.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from sardonyx.exact import residues
from sardonyx.exact.residues import Packed

_PI = 0x3243F6A8885A308D  # any number that no fraction equals would do


def recognized(number: float, bits: int) -> Packed | None:
    """Return the residues of the real number that a literal with so many bits of precision is the rounding of.

    Return None if it is none of the known forms, or that number itself.
    """
    size = abs(number)
    most = 1 << (bits // 2 + 1)  # numerator times denominator: few fractions, so that no literal is near one by chance
    if not math.isfinite(number) or not 1e-4 < size < 1e4:
        return None
    for power in (1, 2, 4):
        near = Fraction(size**power).limit_denominator(max(1, math.isqrt(int(most / size**power))))
        if 0 < near.numerator * near.denominator <= most and _rounds_to(_root(near, power), size, bits):
            packed = _of(near)
            for _ in range(power.bit_length() - 1):
                packed = residues.root(packed)
            return _signed(packed, number)
    pi = residues.random_function(np.array(_PI % (1 << 62)), 0)
    ratio = residues.multiply(_of(Fraction(2)), residues.inverse(pi))
    for real, packed in ((2 / math.pi, ratio), (math.sqrt(2 / math.pi), residues.root(ratio))):
        if _rounds_to(real, size, bits):
            return _signed(packed, number)
    return None


def _root(number: Fraction, power: int) -> float:
    value = float(number)
    return value if power == 1 else math.sqrt(value) if power == 2 else math.sqrt(math.sqrt(value))


def _rounds_to(real: float, literal: float, bits: int) -> bool:
    """Return whether a real number, known to 53 bits, is a literal after rounding; a literal that is exact is not."""
    fraction, exponent = math.frexp(real)
    rounded = math.ldexp(round(math.ldexp(fraction, bits)), exponent - bits)
    return rounded == literal


def _of(number: Fraction) -> Packed:
    top, bottom = (residues.of_integers(np.array(part)) for part in (number.numerator, number.denominator))
    return residues.multiply(top, residues.inverse(bottom))


def _signed(packed: Packed, number: float) -> Packed:
    return packed if number > 0 else residues.subtract(np.zeros_like(packed), packed)
