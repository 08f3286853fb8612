"""From the text of an answer to its pieces: one line of plain characters, freed of what surrounds it, cut where lists are."""

from __future__ import annotations

import re

_FRACTIONS = "1/2 1/4 3/4 1/3 2/3 1/5 2/5 3/5 4/5 1/6 5/6 1/8 3/8 5/8 7/8"
_CHARACTERS = str.maketrans(
    dict(
        zip(
            "−–‒﹣－＋０１２３４５６７８９％＄，．（）＝：’\u00a0\u202f\u2009\u200a\u3000",
            "-----+0123456789%$,.()=:'     ",
            strict=True,
        )
    )
    | {"×": "\\times ", "·": "\\cdot ", "÷": "/", "π": "\\pi ", "∞": "\\infty ", "±": "\\pm ", "₀": "_0"}
    | {"⁄": "/", "≤": "\\le ", "≥": "\\ge ", "\u200b": ""}
    | {fraction: f" {written}" for fraction, written in zip("½¼¾⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", _FRACTIONS.split(), strict=True)}
)
_WRAPPERS = (
    ("$$", "$$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ("**", "**"),
    ("*", "*"),
    ("`", "`"),
    ('"', '"'),
    ("“", "”"),
)
_RAISED = re.compile("[⁺⁻]?[⁰¹²³⁴-⁹]{1,3}")
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,3}(?=\{)")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])|\\[,;: ]|~")
_DEGREES = re.compile(r"\^\s*\{?\s*\\circ\s*\}?|\\degree\b|\\circ\b")
_LATEX_FRACTION = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_THOUSANDS = re.compile(
    r"(?<![0-9.,])[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+(?!,?[0-9])|(?: [0-9]{3})+(?! ?[0-9/])|(?:_[0-9]{3})+(?![0-9_])"
    r"|(?:'[0-9]{3})+(?!'?[0-9]))"
)
_DECIMAL_COMMA = re.compile(
    r"(?P<before>[^0-9,]{0,20})(?:(?P<whole>[0-9]+),(?P<decimals>[0-9]{1,2}|[0-9]{4,})|(?P<zero>0),(?P<all>[0-9]+)"
    r"|(?P<grouped>[0-9]{1,3}(?:[. '’\u202f\u00a0][0-9]{3})+),(?P<rest>[0-9]+))(?P<after>[^0-9,]{0,80})",
    re.ASCII,
)
_AND_FRACTION = re.compile(r"(?<=[0-9])\s+and\s+(?=[0-9]{1,3}\s?/\s?[0-9]|\\[dt]?frac)")
_SEPARATOR = re.compile(r"\\[{}]|[([{]|[)\]}]|[,;]|(?<![A-Za-z\\])(?:or|and)(?![A-Za-z])")


def normalise(text: str) -> str:
    """One line of plain characters, freed of what surrounds an answer and of LaTeX that changes only its looks."""
    text = text.strip()
    if not text.isascii():
        raised = _RAISED.sub(lambda m: "^{" + m[0].translate(_LOWERED) + "}", text)
        text = raised.translate(_CHARACTERS).strip()
    before = None
    while before != text:
        before = text
        text = text.rstrip(".,;: \n\t。")
        for left, right in _WRAPPERS:
            if len(text) > len(left + right) and text.startswith(left) and text.endswith(right):
                text = text[len(left) : -len(right)].strip()
        if text.startswith("\\") and (box := _BOX.match(text)) and (inner := bracketed(text[box.end() :])):
            text = inner[1]
    if "\\" in text:
        text = _TEXT.sub(r" \1 ", text).replace(r"\$", "$").replace(r"\%", "%").replace(r"\!", "").replace(r"\\", "\n")
        text = _LATEX_FRACTION.sub(r"\\frac", _DEGREES.sub("°", _SPACING.sub(" ", text)))
    if "{,}" in text:
        text = text.replace("{,}", "")
    if "\n" in text:
        text = text.strip().replace("\n", " " if r"\begin" in text else " ; ")
    return " ".join(text.split()).replace(" ^", "^")


def bracketed(text: str) -> tuple[str, str] | None:
    r"""The pair of brackets around the whole text, and what is inside, else None; `\{` counts as `{`."""
    text = text.replace(r"\{", "{").replace(r"\}", "}")
    if not text or text[0] not in "([{" or text[-1] not in ")]}":
        return None
    depth = 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and i < len(text) - 1:
            return None
    return (text[0] + text[-1], text[1:-1].strip()) if depth == 0 else None


def split(text: str) -> list[str]:
    """The parts between commas, semicolons, "or" and "and" that stand outside all brackets."""
    pieces, depth, start = [], 0, 0
    for match in _SEPARATOR.finditer(text):
        token = match[0]
        if token[-1] in "([{":
            depth += 1
        elif token[-1] in ")]}":
            depth -= 1
        elif depth == 0:
            pieces.append(text[start : match.start()])
            start = match.end()
    pieces.append(text[start:])
    return [piece.strip() for piece in pieces if piece.strip()]


def join_thousands(text: str) -> str:
    """The text with 1234 for 1,234 or 1 234 or 1'234 or 1_234."""
    return _THOUSANDS.sub(lambda m: re.sub("[, _']", "", m[0]), text)


def as_one_number(text: str) -> list[str]:
    """Other readings of a text that looks like two numbers: `3,5` as in many languages, and `1 and 1/2`."""
    if text.count(",") == 1 and (match := _DECIMAL_COMMA.fullmatch(text)):
        whole = match["whole"] or match["zero"] or re.sub("[^0-9]", "", match["grouped"])
        return [f"{match['before']}{whole}.{match['decimals'] or match['all'] or match['rest']}{match['after']}"]
    return [_AND_FRACTION.sub(" ", text)] if _AND_FRACTION.search(text) else []
