"""Right and wrong ways to write an answer, as people and models write them, with the label that a careful reader would give.

Left out is what careful readers disagree about: roundings (0.333 for 1/3), "about 18", ordinals, the question mark in "18?", a
dozen, conversions of units (5,000 m for 5 km), and 1,234 where 1.234 is asked for.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from grpo_exp.answers import words

WORDS_TO = 1_000_000  # whole numbers below are written in words too


class Spelling(NamedTuple):
    """A way to write an answer.

    Attributes:
        how: what is special about it, in a few words; spellings of one kind share it.
        text: the answer so written.
        plain: whether it may stand without a tag, a box or words around it, as in "x = 18".
    """

    how: str
    text: str
    plain: bool = False


def right_number(value: Fraction) -> list[Spelling]:
    """Right spellings of a number that has no unit."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    if (digits := decimal(size)) is None:
        return _right_fraction(sign, size)
    found = [Spelling("plain", sign + digits, True), *_dressed(sign + digits), *_powers(sign, size)]
    if value.denominator == 1:
        found += [Spelling("zero decimals", f"{sign}{digits}.0", True), Spelling("zero decimals", f"{sign}{digits}.00", True)]
        found += _thousands(sign, digits, "", ",", ".")
    else:
        found += [Spelling("zero decimals", f"{sign}{digits}0", True), *_right_fraction(sign, size)]
        whole, _, rest = digits.partition(".")
        if len(rest) != 3:
            found.append(Spelling("decimal comma", f"{sign}{whole},{rest}"))
        found += _thousands(sign, whole, rest, ",", ".") + _thousands(sign, whole, rest, ".", ",")
        if size < 1:
            found.append(Spelling("no leading zero", f"{sign}.{rest}", True))
    found += _signs(sign, digits)
    if size < WORDS_TO and len(digits.partition(".")[2]) <= 2:
        spoken = ("minus " if sign else "") + words.write(digits)
        found += [Spelling("words", spoken), Spelling("words", spoken.capitalize() + ".")]
    return found


def wrong_number(value: Fraction) -> list[Spelling]:
    """Spellings that a careless reader might take for the number, and near misses."""
    text = write(value)
    size, sign = abs(value), "-" if value < 0 else ""
    near = {
        "one more": value + 1,
        "one less": value - 1,
        "another sign": -value,
        "ten times": value * 10,
        "a tenth": value / 10,
        "a hundred times": value * 100,
        "upside down": 1 / value if value else Fraction(7),
        "a half more": value + Fraction(1, 2),
        "the square": value * value,
    }
    found = [Spelling(how, write(other), True) for how, other in near.items() if other != value]
    found += [
        Spelling("another number begins with it", f"{text}7" if value.denominator == 1 else f"{text}5", True),
        Spelling("another number ends in it", f"{sign}7{write(size)}", True),
        *(Spelling("negated", form.format(text)) for form in ("not {}", "It is not {}.", "anything but {}", "{} is wrong")),
        *(Spelling("negated", form.format(text)) for form in ("not x = {}", "x ≠ {}", "never {}")),
        *(Spelling("several candidates", form.format(text, write(value + 1))) for form in CANDIDATES),
        *(Spelling("several candidates", form.format(write(value - 1), text)) for form in CANDIDATES),
        *(Spelling("a range", form.format(write(value - 1), write(value + 1))) for form in RANGES),
        *(Spelling("a bound", form.format(text)) for form in BOUNDS),
        *(Spelling("not carried out", form.format(text)) for form in ("{} + 0", "{} * 1", "2*{}/2", "({}) - 1 + 1", "1*{}")),
        *(Spelling("something of it", form.format(text)) for form in PARTS),
        Spelling("an equation that is false", f"{write(value + 1)} = {text}"),
        Spelling("nothing said", "?"),
        Spelling("nothing said", "..."),
        Spelling("nothing said", "unknown"),
    ]
    if value.denominator == 1 and 0 <= value < WORDS_TO:
        found += [Spelling("words", words.write(write(value + 1))), Spelling("words", f"not {words.write(text)}")]
        found += [Spelling("words", f"{words.write(text)} or {words.write(write(value + 1))}")]
    if value.denominator == 1 and size >= 1000:
        found += [
            Spelling("separators misplaced", f"{text[:-2]},{text[-2:]}"),
            Spelling("rounded", write(value / 1000) + "k or so"),
        ]
    return found


CANDIDATES = (
    "{} or {}",
    "{}, {}",
    "{} and {}",
    "{} {}",
    "{}; {}",
    "{}\n{}",
    "either {} or {}",
    "{} (or {})",
    "{} | {}",
    "{}/ {}?",
)
RANGES = ("{}-{}", "{} – {}", "between {} and {}", "from {} to {}", "{} to {}", "[{}, {}]")
BOUNDS = ("at least {}", "more than {}", "less than {}", "> {}", "< {}", "\\ge {}", "≤ {}", "{} or more", "up to {}", "{}+")
PARTS = (
    *("{}x", "{} + x", "{}^2", "{}^{{0}}", "\\sqrt{{{}}}", "\\frac{{{}}}{{7}}", "twice {}", "half of {}", "{} and a half"),
    *("{} thousand", "{} million", "{} hundred", "log({})", "{} mod 7", "{} squared", "{} minus 1", "{}\\pi"),
)


def right_unit(number: str, unit: str, long: str) -> list[Spelling]:
    """A number with its unit, `km`, which is `kilometers` in full."""
    forms = ("{} {}", "{}{}", "{}\\text{{ {}}}", "\\text{{{} {}}}", "{}\\,\\mathrm{{{}}}", "**{} {}**")
    found = [Spelling("unit", form.format(number, unit)) for form in forms]
    return [*found, Spelling("unit in full", f"{number} {long}"), Spelling("unit in full", f"{number} {long}.")]


def right_money(number: str) -> list[Spelling]:
    """An amount of dollars; `number` has two decimals."""
    grouped = f"{Decimal(number):,}"
    forms = ("${}", "$ {}", "{}$", "{} dollars", "\\${}", "US${}", "USD {}", "{} USD", "${}.", "**${}**", "\\text{{\\${}}}")
    return [Spelling("currency", form.format(text)) for text in dict.fromkeys((number, grouped)) for form in forms]


def wrong_money(number: str) -> list[Spelling]:
    """Other amounts than these dollars."""
    return [
        *(Spelling("another currency", form.format(number)) for form in ("{} euros", "€{}", "{} cents", "{} ¢")),
        Spelling("another amount", f"${Decimal(number) + Decimal('0.01')}"),
        Spelling("another amount", f"-${number}"),
        Spelling("another amount", f"${number} million"),
        Spelling("several candidates", f"${number} or ${Decimal(number) + 1}"),
    ]


def right_percent(number: str) -> list[Spelling]:
    """Right spellings of a percentage."""
    share = write(Fraction(number) / 100)
    forms = (
        "{}%",
        "{} %",
        "{}\\%",
        "{} percent",
        "{} per cent",
        "{}\\text{{ percent}}",
        "${}\\%$",
        "{}％",
        "{} pct",
        "**{}%**",
    )
    found = [Spelling("percent", form.format(number)) for form in forms]
    found += [Spelling("percent in words", f"{words.write(number)} percent"), Spelling("as a share", share, True)]
    top, bottom = Fraction(share).as_integer_ratio()
    return [*found, Spelling("as a share", f"{top}/{bottom}"), Spelling("as a share", f"\\frac{{{top}}}{{{bottom}}}")]


def wrong_percent(number: str) -> list[Spelling]:
    """Spellings of other percentages."""
    value = Fraction(number)
    others = {"one more": value + 1, "ten times": value * 10, "a hundredth": value / 100, "the rest": 100 - value}
    found = [Spelling(how, f"{write(other)}%") for how, other in others.items() if other != value]
    return [*found, Spelling("negated", f"not {number}%"), Spelling("a bound", f"more than {number}%")]


def right_set(values: list[int]) -> list[Spelling]:
    """Right spellings of several values whose order does not matter."""
    a, b = values
    forms = ("{}, {}", "{} and {}", "{} or {}", "x = {} or x = {}", "x={}, x={}", "\\{{{}, {}\\}}", "{{{}, {}}}", "x = {}, {}")
    return [Spelling("a set", form.format(*pair)) for pair in ((a, b), (b, a)) for form in forms]


def wrong_set(values: list[int]) -> list[Spelling]:
    """Spellings of other sets."""
    a, b = values
    texts = (f"{a}", f"{b}", f"{a}, {b + 1}", f"{a}, {b}, {b + 1}", f"x = {a}", f"{a}, not {b}", f"{-a}, {-b}", f"{a}{b}")
    return [Spelling("another set", text) for text in texts]


def right_word(word: str) -> list[Spelling]:
    """Right spellings of an answer that is a word."""
    forms = ("{}", "**{}**", "{}.", '"{}"', "\\text{{{}}}", "`{}`", "“{}”")
    return [Spelling("a word", form.format(text)) for text in (word, word.lower()) for form in forms]


def wrong_word(word: str, other: str) -> list[Spelling]:
    """Other answers that are words."""
    forms = ("{1}", "not {0}", "{0} or {1}", "{1}, {0}", "the day after {0}", "{0}s", "{0} {1}", "no {0}")
    return [Spelling("another word", form.format(word, other)) for form in forms]


# ---- numbers as text


def decimal(value: Fraction) -> str | None:
    """The decimal digits of a number; None where they have no end."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest != 1:
        return None
    text = format(Decimal(value.numerator) / Decimal(value.denominator), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def write(value: Fraction) -> str:
    """A number as a person writes it: in decimals, or as a fraction where these have no end."""
    digits = decimal(abs(value))
    return ("-" if value < 0 else "") + (digits or f"{abs(value.numerator)}/{value.denominator}")


def _dressed(text: str) -> list[Spelling]:
    """What may stand around a number without changing it."""
    marks = ("**{}**", "`{}`", "*{}*", '"{}"', "{}.", "{},", "{} .", "{}。", "{};", "  {}  ", "\n{}\n", "“{}”")
    latex = ("${}$", "\\({}\\)", "$${}$$", "\\text{{{}}}", "\\mathbf{{{}}}", "\\boxed{{{}}}", "$\\boxed{{{}}}$", "\\[{}\\]")
    names = (
        "x = {}",
        "x={}",
        "Answer: {}",
        "The answer is {}",
        "The answer is {}.",
        "Total = {}",
        "The total is {}.",
        "n = {}",
    )
    found = [Spelling("marks around it", form.format(text)) for form in marks]
    found += [Spelling("LaTeX around it", form.format(text)) for form in latex]
    return found + [Spelling("named", form.format(text)) for form in names]


def _signs(sign: str, digits: str) -> list[Spelling]:
    wide = digits.translate(str.maketrans("0123456789.", "０１２３４５６７８９．"))
    if not sign:
        return [
            Spelling("a plus sign", f"+{digits}"),
            Spelling("full-width digits", wide),
            Spelling("leading zeros", f"00{digits}"),
        ]
    signs = ("−", "–", "- ", "minus ", "negative ", "－", "Negative ")
    return [Spelling("other minus signs", other + digits) for other in signs]


def _thousands(sign: str, whole: str, rest: str, separator: str, point: str) -> list[Spelling]:
    """Thousands separated in the ways of several languages; `1.234` alone, which is a decimal too, is not among them."""
    if len(whole) < 4:
        return []
    groups = f"{int(whole):,}".split(",")
    tail = point + rest if rest else ""
    found = [] if separator == "." and not rest else [Spelling("thousands", f"{sign}{separator.join(groups)}{tail}")]
    if separator == ",":
        spaced = (" ", "\u202f", "\u00a0", "'", "’", "\\,", "{,}", ",\\!")
        found += [Spelling("thousands", f"{sign}{mark.join(groups)}{tail}") for mark in spaced]
        if not rest and len(groups) > 2:
            found.append(Spelling("thousands", sign + ".".join(groups)))
    return found


def _powers(sign: str, size: Fraction) -> list[Spelling]:
    """Scientific notation, and millions."""
    if not size:
        return []
    power = len(str(int(size))) - 1
    digits = decimal(size / 10**power)
    if power < 1 or digits is None:
        return []
    raised = str(power).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    forms = ("{}e{}", "{}E{}", "{}e+{}", "{} \\times 10^{{{}}}", "{}*10^{}", "{} × 10^{}", "{} x 10^{}", "{} \\cdot 10^{{{}}}")
    found = [Spelling("scientific", sign + form.format(digits, power)) for form in forms]
    found.append(Spelling("scientific", f"{sign}{digits}×10{raised}"))
    if size >= 10**6 and size.denominator == 1 and size % 10**5 == 0:
        found += [Spelling("millions", f"{sign}{decimal(size / 10**6)} {word}") for word in ("million", "Million", "million.")]
    return found


def _right_fraction(sign: str, size: Fraction) -> list[Spelling]:
    """Right spellings of a number that is not whole, as a fraction."""
    top, bottom = size.as_integer_ratio()
    forms = ("{}/{}", "{} / {}", "\\frac{{{}}}{{{}}}", "\\dfrac{{{}}}{{{}}}", "\\tfrac{{{}}}{{{}}}", "{}⁄{}", "${}/{}$")
    found = [Spelling("fraction", sign + form.format(top, bottom)) for form in forms]
    found += [Spelling("fraction", f"{sign}{2 * top}/{2 * bottom}"), Spelling("fraction", f"x = {sign}{top}/{bottom}")]
    if top > bottom and not sign:
        whole, rest = divmod(top, bottom)
        mixed = ("{} {}/{}", "{}\\frac{{{}}}{{{}}}", "{} and {}/{}", "{} \\frac{{{}}}{{{}}}")
        found += [Spelling("mixed number", form.format(whole, rest, bottom)) for form in mixed]
        if (rest, bottom) == (1, 2):
            found += [Spelling("mixed number", f"{whole}½"), Spelling("words", f"{words.write(str(whole))} and a half")]
    elif not sign and (spoken := words.write_fraction(top, bottom)):
        found.append(Spelling("words", spoken))
    return found
