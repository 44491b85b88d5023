"""Bounds in few digits, rounded to the side on which they stay true."""

from __future__ import annotations

import decimal

__all__ = ["rounded_down", "rounded_up"]


def rounded_up(value: float, digits: int = 3) -> str:
    """The number with so many significant digits, and never less than it is.

    >>> rounded_up(3.201), rounded_up(0.1), rounded_up(12345.0), rounded_up(8.0)
    ('3.21', '0.1', '12400', '8')
    """
    return _rounded(value, digits, decimal.ROUND_CEILING)


def rounded_down(value: float, digits: int = 3) -> str:
    """The number with so many significant digits, and never more than it is.

    >>> rounded_down(3.209), rounded_down(0.1), rounded_down(12345.0), rounded_down(8.0)
    ('3.2', '0.1', '12300', '8')
    """
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    context = decimal.Context(prec=digits, rounding=rounding)
    # From its shortest text: as the number that a user gave, and not a little above it.
    return f"{float(context.create_decimal(repr(float(value)))):.15g}"
