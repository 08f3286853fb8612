"""Numbers in English words: "twenty-one", "one hundred and five", "minus seven", "three point five", "three quarters".

Read is what people write out as an answer. Left out: ordinals, dozens, "a couple", "nineteen hundred", and other languages.
"""

from __future__ import annotations

import re
from fractions import Fraction

_ONES = "zero one two three four five six seven eight nine ten eleven twelve"
_TEENS = "thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_UNITS = [*_ONES.split(), *_TEENS.split()]
_TWENTIES = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS = dict(zip(_TWENTIES.split(), range(20, 100, 10), strict=True))
_SMALL = {word: value for value, word in enumerate(_UNITS)} | _TENS | {"fourty": 40}
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_ORDINALS = "half third fourth fifth sixth seventh eighth ninth tenth"
_PARTS = {word: value for value, word in enumerate(_ORDINALS.split(), 2)} | {"quarter": 4, "halves": 2, "hundredth": 100}
_PARTS |= {f"{word}s": value for word, value in _PARTS.items() if word != "halves"}
_SIGNS = ("minus", "negative")
_MOST_WORDS = 30
_WORDS = re.compile(r"[A-Za-z]+(?:[ -]+[A-Za-z]+){0,29}")
_KNOWN = {*_SMALL, *_SCALES, *_PARTS, *_SIGNS, "hundred", "and", "point", "a", "an"}


def read(text: str) -> tuple[Fraction, str] | None:
    """The number that the text begins with, and the rest of the text, such as its unit; None where it begins otherwise."""
    match = _WORDS.match(text)
    if match is None or match[0].split(" ")[0].split("-")[0].lower() not in _KNOWN:
        return None
    found = list(re.finditer(r"[A-Za-z]+", match[0]))
    count = next((i for i, word in enumerate(found) if word[0].lower() not in _KNOWN), len(found))
    for n in range(min(count, _MOST_WORDS), 0, -1):  # the longest that is a number: "two and a" is none, "two" is
        value = _value([word[0].lower() for word in found[:n]])
        if value is not None:
            return value, text[found[n - 1].end() :]
    return None


def write(digits: str) -> str:
    """A number not below 0 in words, given in decimal digits."""
    whole, _, rest = digits.partition(".")
    spoken = " ".join(_UNITS[int(digit)] for digit in rest)
    return _write(int(whole)) + (f" point {spoken}" if rest else "")


def write_fraction(top: int, bottom: int) -> str:
    """A fraction below 1 in words; "" where its denominator has no name here."""
    name = next((word for word, value in _PARTS.items() if value == bottom and not word.endswith("s")), "")
    if not name or top >= 20:
        return ""
    several = "halves" if name == "half" else f"{name}s"
    return f"{_UNITS[top]} {name if top == 1 else several}"


def _write(number: int) -> str:
    if number < 20:
        return _UNITS[number]
    if number < 100:
        tens = next(word for word, value in _TENS.items() if value == number // 10 * 10)
        return tens + (f"-{_UNITS[number % 10]}" if number % 10 else "")
    if number < 1000:
        return f"{_UNITS[number // 100]} hundred" + (f" and {_write(number % 100)}" if number % 100 else "")
    name, scale = max(((n, s) for n, s in _SCALES.items() if s <= number), key=lambda pair: pair[1])
    rest = number % scale
    joint = " and " if 0 < rest < 100 else " "
    return f"{_write(number // scale)} {name}" + (f"{joint}{_write(rest)}" if rest else "")


def _value(words: list[str]) -> Fraction | None:
    """The value of words that are a number as a whole."""
    if words[0] in _SIGNS:
        value = _value(words[1:]) if len(words) > 1 and words[1] not in _SIGNS else None
        return None if value is None else -value
    if words[-1] in _PARTS:
        return _with_part(words)
    if "point" in words:
        at = words.index("point")
        whole, digits = _whole(words[:at]), [_SMALL.get(word, 10) for word in words[at + 1 :]]
        if whole is None or not digits or max(digits) > 9:
            return None
        return Fraction(f"{whole}.{''.join(map(str, digits))}")
    whole = _whole(words)
    return None if whole is None else Fraction(whole)


def _with_part(words: list[str]) -> Fraction | None:
    """ "three quarters", "a half", "two and a half"."""
    bottom, before = _PARTS[words[-1]], words[:-1]
    if "and" in before:
        at = len(before) - 1 - before[::-1].index("and")
        whole, top = _whole(before[:at]), _top(before[at + 1 :])
        return None if whole is None or top is None or top >= bottom else whole + Fraction(top, bottom)
    top = _top(before) if before or words == ["half"] else None  # "third" alone is an ordinal
    return None if top is None else Fraction(top, bottom)


def _top(words: list[str]) -> int | None:
    return 1 if words in ([], ["a"], ["an"]) else _whole(words)


def _whole(words: list[str]) -> int | None:
    """A whole number: groups of hundreds, each with its scale, from the largest to the smallest."""
    if not words or words[-1] == "and" or words[0] == "and":
        return None
    total, last = 0, 10**15
    group: list[str] = []
    for word in words:
        if word in _SCALES:
            value = _below_thousand(group)
            if value is None or _SCALES[word] >= last or value == 0:
                return None
            total, last, group = total + value * _SCALES[word], _SCALES[word], []
        else:
            group.append(word)
    if not group:
        return total
    value = _below_thousand(group[1:] if group[0] == "and" and total else group)
    return None if value is None or (value == 0 and total) else total + value


def _below_thousand(words: list[str]) -> int | None:
    """ "two hundred and five", "twenty one", "a hundred"."""
    if "hundred" in words:
        at = words.index("hundred")
        hundreds = 1 if words[:at] in (["a"], ["one"]) else _SMALL.get(words[0], 0) if at == 1 else 0
        rest = words[at + 1 :]
        rest = rest[1:] if rest[:1] == ["and"] else rest
        if not 1 <= hundreds <= 9 or (words[-1] == "and"):
            return None
        below = _below_thousand(rest) if rest else 0
        return None if below is None or below >= 100 or (rest and below == 0) else 100 * hundreds + below
    if words == ["a"]:
        return None
    values = [_SMALL.get(word) for word in words]
    if None in values or not 1 <= len(values) <= 2:
        return None
    if len(values) == 1:
        return values[0]
    tens, units = values
    return tens + units if tens is not None and units is not None and tens >= 20 and 1 <= units <= 9 else None
