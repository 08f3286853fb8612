"""What may stand behind a number without changing its value: units, currencies, counted things."""

from __future__ import annotations

import re
from typing import NamedTuple

_KNOWN = """
mm millimeter millimeters millimetre millimetres; cm centimeter centimeters centimetre centimetres; m meter meters metre metres
km kilometer kilometers kilometre kilometres; in inch inches; ft foot feet; yd yard yards; mi mile miles
mg milligram milligrams; g gram grams; kg kilogram kilograms; lb lbs pound pounds; oz ounce ounces; t ton tons tonne tonnes
ml mL milliliter milliliters millilitre millilitres; l L liter liters litre litres; gal gallon gallons
ms millisecond milliseconds; s sec second seconds; min minute minutes; h hr hrs hour hours; day days; week weeks
month months; year years yr yrs; $ dollar dollars usd USD US$; ¢ cent cents; € euro euros eur EUR; £ GBP
"""
SYMBOLS = {word: group.split()[0] for group in re.split(r"[;\n]", _KNOWN) if group.strip() for word in group.split()}
SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

# Letters that are a unit on their own; other single letters are variables: "5x", "3 n".
_LETTERS = set("mgshlLWVANCF")
# Words after which the number is not the whole answer, and functions that would be applied to something.
_OTHER_WORDS = """
and or half halves third thirds quarter quarters plus minus times over to not if is are was equals than versus vs
hundred hundreds dozen dozens thousand thousands million millions billion billions trillion trillions
pi sin cos tan cot csc log ln lg exp sqrt mod choose factorial squared cubed divided multiplied x
"""
_NOT_UNITS = set(_OTHER_WORDS.split())
_WORD = r"[A-Za-zµΩ°$€£'’]+"
_PERCENT = re.compile(r"\s?(?:%|per ?cent\b|pct\b)")
_SCALE = re.compile(r"\s?(thousand|million|billion|trillion)\b", re.IGNORECASE)
_UNIT = re.compile(rf"(?:{_WORD}(?:\^\{{?-?[1-4]\}}?)?[ /*.-]{{1,2}}){{0,8}}{_WORD}(?:\^\{{?-?[1-4]\}}?)?")


class Tail(NamedTuple):
    """What stood behind a number: a factor ("million"), whether a percent sign, and the unit's symbol, "" if unknown."""

    scale: int = 1
    percent: bool = False
    unit: str = ""


def read(rest: str) -> Tail | None:
    """The meaning of the text behind a number; None where it is more than a unit, so that the number is not the answer."""
    if not rest.strip():
        return Tail()
    scale = 1
    if match := _SCALE.match(rest):
        scale, rest = SCALES[match[1].lower()], rest[match.end() :]
    match = _PERCENT.match(rest)
    percent = match is not None
    if match:
        rest = rest[match.end() :]
    attached = not (percent or scale > 1) and not rest[:1].isspace()
    text = rest.strip().lstrip("/").lstrip()
    if not text:
        return Tail(scale, percent)
    if not _UNIT.fullmatch(text):
        return None
    words = [w.partition("^")[0] for w in re.split(r"[ /*.-]+", text)]
    if any(not _is_unit_word(word, first=i == 0) for i, word in enumerate(words)):
        return None
    # Letters that touch the number are a product of variables ("2ab") unless they are a known unit or clearly a word.
    if attached and rest[0].isalpha() and words[0] not in SYMBOLS and len(words[0]) < 3 and words[0] not in _LETTERS:
        return None
    first = re.split(r"[ /*.-]", text)[0]
    word, _, exponent = first.partition("^")
    symbol = SYMBOLS.get(word, SYMBOLS.get(word.lower(), ""))
    return Tail(scale, percent, symbol + "".join(c for c in exponent if c not in "{}") if symbol else "")


def _is_unit_word(word: str, first: bool) -> bool:
    if len(word) == 1 and word.isascii() and word.isalpha():
        return word in _LETTERS or (not first and word == "a")
    return word.lower() not in _NOT_UNITS
