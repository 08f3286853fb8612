"""What an answer is worth: the exact value of "$1,234.50", "3/4", "50%", "5 cm", "x=2 or x=3", and when two answers are equal.

Numbers are compared as fractions, without rounding. What is read as a number:

    signs, also the typographic ones; decimals; thousands as 1,234 or 1 234 or 1'234 or 1.234.567
    3/4, \\frac{3}{4}, 1 1/2; 1.5e3, 1.5 \\times 10^3; 5 million; twenty-one, minus seven, two and a half (`words`)
    3,5 and 1.234,50 too where the reference is one number, which two numbers could not be
    currency before or after; units and counted things behind ("18 eggs a day"). Where both sides name a known unit,
      they must agree: 5 km is not 5 m, but 5 km is 5
    50% is 50, and it is 0.5 and 1/2 too: data sets differ in which they write

"The total is 18" is 18. Several values ("2, 3", "x=2 or x=3", "{2, 3}", "±2") are a set; "(2, 3)" and "[2, 3)" keep their
order and brackets.

Not carried out is not answered: "9+9" is not 18, and "12/4" is not 3, or it would pay to copy the question. A quotient of
whole numbers that is no whole number, such as 6/8, is a fraction. A reference answer may be written either way.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from grpo_exp.answers import pieces, symbolic, units, words

LONGEST = 300  # characters; a longer answer is compared as text alone
MOST_ITEMS = 20


class Item(NamedTuple):
    """One value: a number, or text in which spaces and capitals do not count."""

    value: Fraction | str
    percent: bool = False
    unit: str = ""  # symbol of a known unit, "" where there is none or it is unknown
    name: str = ""  # the x of "x = 2"


class Quantity(NamedTuple):
    """An answer: one item, or several. `brackets` is "" for a set, else the pair around an ordered tuple or interval."""

    items: tuple[Item, ...]
    brackets: str = ""


def equal(found: str, reference: str, tolerance: float = 0.0) -> bool:
    """Whether an answer is the reference answer. `tolerance` is a relative difference of numbers, 0 for exact."""
    b, limit = parse(reference, reference=True), Fraction(tolerance)
    if _equal(parse(found), b, limit):
        return True
    if len(found) > LONGEST or not ("," in found or "and" in found):
        return False
    number = len(b.items) == 1 and isinstance(b.items[0].value, Fraction)
    return number and any(_equal(parse(text), b, limit) for text in pieces.as_one_number(found))


def _equal(a: Quantity, b: Quantity, limit: Fraction) -> bool:
    if a.brackets != b.brackets or not a.items or len(a.items) != len(b.items):
        return False
    if a.brackets:
        return all(_same(x, y, limit) for x, y in zip(a.items, b.items, strict=True))
    return all(any(_same(x, y, limit) for y in b.items) for x in a.items) and all(
        any(_same(x, y, limit) for x in a.items) for y in b.items
    )


def canonical(text: str) -> str:
    """A string that is the same for equal answers: "3/4" for 0.75, "2, 3" for "x=3 or x=2".

    A percentage is written as its bare number, a unit is dropped, and symbolic answers are only freed of spaces, so that
    `2\\sqrt{2}` and `\\sqrt{8}`, equal by `equal`, differ here.
    """
    quantity = parse(text)
    names = {item.name for item in quantity.items}
    keep = len(names - {""}) > 1  # "x=2, y=3" is another answer than "x=3, y=2"
    written = [(f"{item.name}=" if keep and item.name else "") + str(item.value) for item in quantity.items]
    if quantity.brackets:
        return f"{quantity.brackets[0]}{', '.join(written)}{quantity.brackets[1]}"
    return ", ".join(sorted(set(written), key=lambda w: (len(w), w)))


def is_number(text: str) -> bool:
    """Whether the text is a number, or several, and nothing else but units and names."""
    if len(text) > LONGEST or not any(c.isdigit() for c in text):
        return False
    items = parse(text).items
    return bool(items) and all(isinstance(item.value, Fraction) for item in items)


def parse(text: str, reference: bool = False) -> Quantity:
    """Read an answer. A `reference` may be a quotient that is a whole number, such as 12/4. No items: the text is empty."""
    return _parse(text, reference) if len(text) <= LONGEST else Quantity((Item(_squeeze(text)),))


@lru_cache(maxsize=8192)
def _parse(text: str, reference: bool) -> Quantity:
    if _INTEGER.fullmatch(text):
        return Quantity((Item(Fraction(int(text))),))
    text = pieces.normalise(text)
    brackets = ""
    if inner := pieces.bracketed(text):
        brackets, text = inner
    else:
        text = pieces.join_thousands(text)
    parts = [text] if text[:1].isalpha() and _spoken(text) else pieces.split(text)  # "one hundred and five" is one
    if len(parts) < 2 or brackets == "{}":
        brackets = ""
    if len(parts) > MOST_ITEMS:
        return Quantity((Item(_squeeze(text)),))
    items = [item for part in parts for item in _items(part, reference)]
    return Quantity(tuple(dict.fromkeys(items)) if not brackets else tuple(items), brackets)


def _same(found: Item, reference: Item, limit: Fraction) -> bool:
    if found.name and reference.name and found.name != reference.name:
        return False
    a, b = found.value, reference.value
    if isinstance(a, str):
        # A number is the only answer to a number; of two expressions, algebra decides.
        return isinstance(b, str) and (_squeeze(a) == _squeeze(b) or symbolic.equal(a, b))
    if isinstance(b, str):
        return symbolic.equal(str(a), b)
    if found.unit and reference.unit and found.unit != reference.unit:
        return False
    if found.percent == reference.percent:
        return _near(a, b, limit)
    return _near(a, b, limit) or (_near(a / 100, b, limit) if found.percent else _near(a, b / 100, limit))


def _near(a: Fraction, b: Fraction, limit: Fraction) -> bool:
    return a == b or (limit > 0 and abs(a - b) <= limit * abs(b))


_INTEGER = re.compile(r"\s*-?[0-9]{1,18}\s*", re.ASCII)
_NAME = re.compile(
    r"(?:(?P<symbol>[A-Za-z](?:_\{?[A-Za-z0-9]{1,8}\}?|\([A-Za-z]\))?|\\[A-Za-z]{2,8})|[A-Za-z][A-Za-z ]{1,40})\s?=(?![=])\s?"
)
_STATED = re.compile(r"[A-Za-z][A-Za-z' ]{0,60}(?::|\s(?:is|are|was|were|equals)(?![A-Za-z']))\s?")
_DENYING = "not never no nor without except unless wrong incorrect false isn't aren't wasn't"
_DENIALS = frozenset(_DENYING.split())
_SIGN_WORD = re.compile(r"(?:minus|negative)\s+(?=[0-9.$€£])", re.IGNORECASE)
_ARITHMETIC = re.compile(r"(?:[0-9+\-*/().$% ]|\\times|\\cdot|\\div|\\frac|[{}])+")
_PLUS_MINUS = re.compile(r"\\pm\s?")
_DECIMAL = r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+"
_FRACTION = re.compile(rf"\\frac ?(?:\{{ ?(-?(?:{_DECIMAL})) ?\}}|([0-9])) ?(?:\{{ ?({_DECIMAL}) ?\}}|([0-9]))")
_NUMBER = re.compile(
    r"(?P<sign>[-+]?) ?(?P<currency>(?:US\$|USD|EUR|GBP|[$€£¥₹])?) ?(?P<sign2>-?)"
    r"(?:(?P<whole>[0-9]+) (?=[0-9]+ ?/))?"
    rf"(?P<number>[0-9]{{1,3}}(?:\.[0-9]{{3}}){{2,}}(?![0-9.])|{_DECIMAL})"
    rf"(?: ?/ ?(?P<over>{_DECIMAL}))?"
    r"(?:[eE](?P<exponent>[-+]?[0-9]{1,2})(?![0-9])"
    r"| ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?\{?(?P<power>[-+]?[0-9]{1,2})(?![0-9])\}?)?"
)


def _items(piece: str, reference: bool) -> list[Item]:
    """The values of one piece: one, or two where it says ±."""
    name = ""
    if (match := _NAME.match(piece)) and not _denies(match[0]):
        name, piece = match["symbol"] or "", piece[match.end() :]
    elif (match := _STATED.match(piece)) and not _denies(match[0]) and _number(piece[match.end() :], reference):
        piece = piece[match.end() :]
    if "=" in piece:
        piece = _last_side(piece, reference)
    if match := _PLUS_MINUS.match(piece):
        rest = piece[match.end() :]
        return [_item(rest, name, reference), _item("-" + rest, name, reference)]
    return [_item(piece, name, reference)]


def _denies(text: str) -> bool:
    """Whether what is said of a number takes it back: "not x = 5"."""
    return not _DENIALS.isdisjoint(text.lower().replace("=", " ").replace(":", " ").split())


def _item(piece: str, name: str, reference: bool) -> Item:
    item = _number(piece, reference)
    return item._replace(name=name) if item else Item(_plain_text(piece), name=name)


def _last_side(piece: str, reference: bool) -> str:
    """The 18 of "9 + 9 = 18"; the whole piece where another side states another number ("17 = 18") or is no arithmetic."""
    *others, last = (side.strip() for side in piece.split("="))
    value = _number(last, reference)
    if value is None:
        return piece
    for other in others:
        number = _number(other, reference)
        if number.value != value.value if number else not _ARITHMETIC.fullmatch(other):
            return piece
    return last


def _number(text: str, reference: bool) -> Item | None:
    """The number that the text is, None where it is anything else or a quotient that was not carried out."""
    if "\\frac" in text:
        text = " ".join(_FRACTION.sub(lambda m: f" {m[1] or m[2]}/{m[3] or m[4]}", text).split())
    match = _NUMBER.match(text)
    if not match:
        return (_spoken(text) or _with_sign_word(text, reference)) if text[:1].isalpha() else None
    tail = units.read(text[match.end() :])
    if tail is None:
        return None
    digits, over = match["number"], match["over"]
    if digits.count(".") > 1:
        digits = digits.replace(".", "")
    value = Fraction(digits)
    if over is not None:
        whole_numbers = digits.isdigit() and over.isdigit()
        if Fraction(over) == 0:
            return None
        value /= Fraction(over)
        if not reference and (not whole_numbers or value.denominator == 1):
            return None
    if match["whole"]:
        if not 0 < value < 1:
            return None
        value += int(match["whole"])
    value *= Fraction(10) ** int(match["exponent"] or match["power"] or 0) * tail.scale
    if (match["sign"] == "-") != (match["sign2"] == "-"):
        value = -value
    return Item(value, tail.percent, units.SYMBOLS.get(match["currency"], "") or tail.unit)


def _spoken(text: str) -> Item | None:
    """The number that the text is in words; None where it is anything else."""
    spoken = words.read(text)
    tail = units.read(spoken[1]) if spoken else None
    return Item(spoken[0] * tail.scale, tail.percent, tail.unit) if spoken and tail else None


def _with_sign_word(text: str, reference: bool) -> Item | None:
    """ "minus 7"."""
    match = _SIGN_WORD.match(text)
    item = _number(text[match.end() :], reference) if match else None
    return item._replace(value=-item.value) if item and isinstance(item.value, Fraction) else None


def _plain_text(text: str) -> str:
    """Text as it is kept in an item: one pair of brackets around a single word or letter, as in "(B)", is dropped."""
    inner = pieces.bracketed(text)
    return inner[1] if inner and inner[1].isalnum() else text


def _squeeze(text: str) -> str:
    return "".join(text.split()).casefold()
