from fractions import Fraction

import pytest

from mappa_core import arithmetic


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("(3+4)*5", 35),
        ("3 + 4*5", 23),
        (" 12-20 ", -8),
        ("7/2", Fraction(7, 2)),
        ("0.1+0.2", Fraction(3, 10)),
        ("-3*-(2)", 6),
        ("(3+4", None),
        ("3x4", None),
        ("2**9999999", None),
        ("7//2", None),
        ("1/0", None),
        ("__import__('os')", None),
        ("", None),
        ("1+" * 200 + "1", None),
        ("(" * 150 + "1", None),
    ],
)
def test_value_of_an_expression(text: str, worth: int | Fraction | None) -> None:
    assert arithmetic.value(text) == worth


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("35\n", 35),
        ("1,234", 1234),
        ("$12.50", Fraction(25, 2)),
        ("3/4", Fraction(3, 4)),
        ("-2", -2),
        ("12 13", None),
        ("1/0", None),
        ("-", None),
        ("", None),
    ],
)
def test_a_text_as_one_number(text: str, worth: int | Fraction | None) -> None:
    assert arithmetic.number(text) == worth


def test_the_last_number_of_a_text() -> None:
    assert arithmetic.last_number("3 pens cost 1,200. So 17.") == 17
    assert arithmetic.last_number("x2 is -4") == -4
    assert arithmetic.last_number("it costs 1,200.") == 1200
    assert arithmetic.last_number("none") is None


def test_the_last_box_counts_and_braces_balance() -> None:
    assert arithmetic.boxed(r"\boxed{1} then \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert arithmetic.boxed(r"\boxed{12") is None
    assert arithmetic.boxed("12") is None


def test_numbers_are_the_same_in_any_order() -> None:
    assert arithmetic.numbers("(3+14)*5") == arithmetic.numbers("5 of 14, 3") == [3, 5, 14]
