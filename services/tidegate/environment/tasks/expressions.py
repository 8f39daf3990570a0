"""A parser of arithmetic in usual notation: whole numbers, + - * / and brackets, exact fractions.

Grammar: sum = product (("+" | "-") product)*; product = factor (("*" | "/") factor)*; factor = number | "(" sum ")".
"""

from fractions import Fraction

import msgspec

from tidegate.core.errors import RecordError

LENGTH_MAX = 200
DEPTH_MAX = 20
DIGITS_MAX = 6
DIGITS = frozenset("0123456789")


class Evaluated(msgspec.Struct, frozen=True):
    """An expression's value, the numbers in it from left to right, and the steps in the order they were worked out.

    A step is an operation on two values, as text: ``3+45``, then ``12*48``.
    """

    value: Fraction
    numbers: tuple[int, ...]
    steps: tuple[str, ...]


def evaluate(text: str) -> Evaluated:
    """The value of an expression; spaces do not count.

    Raises:
        RecordError: it is none, divides by zero, or is longer, deeper or of larger numbers than any that is needed.
    """
    if len(text) > LENGTH_MAX:
        raise RecordError(f"An expression of {len(text)} characters", why=f"at most {LENGTH_MAX} are read")
    reader = _Reader(text)
    value = reader.sum_of_products(depth=0)
    rest = reader.rest()
    if rest:
        raise RecordError(f"{text[:60]!r} is no expression", why=f"{rest[:20]!r} is left over")
    return Evaluated(value, tuple(reader.numbers), tuple(reader.steps))


class _Reader:
    """The position of the parser."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self.numbers: list[int] = []
        self.steps: list[str] = []

    def rest(self) -> str:
        self._skip_spaces()
        return self._text[self._position :]

    def sum_of_products(self, *, depth: int) -> Fraction:
        value = self._product(depth=depth)
        while sign := self._taken("+-"):
            term = self._product(depth=depth)
            self.steps.append(f"{value}{sign}{term}")
            value = value + term if sign == "+" else value - term
        return value

    def _product(self, *, depth: int) -> Fraction:
        value = self._factor(depth=depth)
        while sign := self._taken("*/"):
            factor = self._factor(depth=depth)
            if sign == "/" and factor == 0:
                raise RecordError("The expression divides by zero")
            self.steps.append(f"{value}{sign}{factor}")
            value = value * factor if sign == "*" else value / factor
        return value

    def _factor(self, *, depth: int) -> Fraction:
        if depth > DEPTH_MAX:
            raise RecordError("The expression nests too deep", why=f"at most {DEPTH_MAX} brackets are read")
        if self._taken("("):
            value = self.sum_of_products(depth=depth + 1)
            if not self._taken(")"):
                raise RecordError("A bracket of the expression is not closed")
            return value
        self._skip_spaces()
        digits = ""
        while self._position < len(self._text) and self._text[self._position] in DIGITS:
            digits += self._text[self._position]
            self._position += 1
        if not 0 < len(digits) <= DIGITS_MAX:
            raise RecordError(
                "The expression lacks a number", why=f"a number of 1 to {DIGITS_MAX} digits is wanted"
            )
        self.numbers.append(int(digits))
        return Fraction(int(digits))

    def _taken(self, characters: str) -> str:
        """The next character if it is one of these, else nothing."""
        self._skip_spaces()
        if self._position < len(self._text) and self._text[self._position] in characters:
            self._position += 1
            return self._text[self._position - 1]
        return ""

    def _skip_spaces(self) -> None:
        while self._position < len(self._text) and self._text[self._position] == " ":
            self._position += 1
