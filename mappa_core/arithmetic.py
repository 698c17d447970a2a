"""Exact arithmetic on text: what a plan is worth, which number a tool printed, what an answer boxes.

Expressions are parsed and walked, never evaluated as code; anything but + - * / ( ) and decimal numbers is refused, and
so is text or a number too long to be an answer. Standard library only: problems, graders and coach all stand on it.
"""

from __future__ import annotations

import ast
import re
from fractions import Fraction

LONGEST = 200
"""Characters of text that may still be an expression."""
NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:/\d+)?")
ALLOWED = re.compile(r"[\d\s+\-*/().]+")


def value(expression: str) -> Fraction | None:
    """The exact value of an arithmetic expression, or None where it is not one (or divides by 0)."""
    text = expression.strip()
    if len(text) > LONGEST or not ALLOWED.fullmatch(text):
        return None
    try:
        return _walk(ast.parse(text, mode="eval").body)
    except (SyntaxError, ZeroDivisionError):
        return None


def _walk(node: ast.expr) -> Fraction | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _walk(node.operand)
        return None if inner is None else -inner if isinstance(node.op, ast.USub) else inner
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _walk(node.left), _walk(node.right)
    if left is None or right is None:
        return None
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
    return None


def numbers(text: str) -> list[int]:
    """The whole numbers written in `text`, sorted: the same for two plans made of the same numbers."""
    return sorted(int(n) for n in re.findall(r"\d+", text[:LONGEST]))


def number(text: str) -> Fraction | None:
    """`text` as one exact number (1234, -2.5, 3/4, 1,234, with $ and spaces around it), or None."""
    bare = text.strip().strip("$").strip()
    if len(bare) > LONGEST or not bare or not NUMBER.fullmatch(bare):
        return None
    try:
        return Fraction(bare.replace(",", ""))
    except (ValueError, ZeroDivisionError):
        return None


def last_number(text: str) -> Fraction | None:
    """The last number written in `text`, or None."""
    found: list[str] = re.findall(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:/\d+)?", text[-2000:])
    return number(found[-1].rstrip(",")) if found else None


def boxed(text: str) -> str | None:
    r"""What the last \boxed{...} of `text` holds, braces balanced, or None where there is none that closes."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at]
    return None
