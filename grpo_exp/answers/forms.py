"""Where the final answer stands in a completion. What it is worth is `quantities.py`'s matter.

The forms an answer may take, in order of trust:

    tag          <answer>5</answer>        the last complete pair
    boxed        \\boxed{5}                 the last complete box, nested braces and all
    hash         #### 5                    as in GSM8K
    answer_is    The answer is 5.          also "Answer: 5"
    equation     114 / 57 = 2              a number after the last equals sign of the last line
    whole        5                         the completion is a number and nothing else
    last_number  ... 5 ...                 the last number anywhere: rewards a completion that never committed to an answer

The first form in the caller's list that occurs decides; within a form the last occurrence counts, so that naming many
candidates gains nothing. Every search takes time linear in the text: what a policy optimises is hostile by nature.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from grpo_exp.answers import quantities

CLOSED = ("tag", "boxed")  # forms with an end of their own; the others end where the line ends
FORMS = (*CLOSED, "hash", "answer_is", "equation", "whole", "last_number")
WRITTEN = {
    "tag": "<answer>{}</answer>",
    "boxed": "\\boxed{{{}}}",
    "hash": "#### {}",
    "answer_is": "The answer is {}",
    "equation": "x = {}",
    "whole": "{}",
    "last_number": "{}",
}
"""How an answer is stated in each form."""

_TAG = re.compile(r"</?answer>")
_BOX = re.compile(r"(\\(?:boxed|fbox)[ \t]{0,3}\{)|\\.|[{}]", re.DOTALL)
_HASH = re.compile(r"(?<!#)####(?!#)")
_ANSWER_IS = re.compile(
    r"\banswers?\b[*_ \t]{0,4}(?:(?:is|are|equals|(?:would|should|must|will) be)\b(?!['’])|[=:])"
    r"[*_: \t]{0,8}\n{0,2}[ \t*]{0,8}",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|[,;]?\s(?:because|since|as|which|so|that|where)\b|[,;]\s(?:and\s)?not\s(?=\S)")
_EQUALS = re.compile(r"(?<![<>!=≠≤≥:])=(?!=)")
_NUMBER = re.compile(r"(?<![0-9A-Za-z.])-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:/[0-9]+)?%?")


def find(text: str, forms: Sequence[str], finished: bool = True) -> str | None:
    """The text of the answer, None where no form in `forms` occurs.

    A tag or a box left open is no answer, and neither is what stands inside it. Of a completion that was cut off
    (`finished` false) the forms without an end of their own see all lines but the last: "= 1" may have become "= 18".
    """
    end = len(text)
    for form in forms:
        if form in CLOSED:
            found, opened = _last_tag(text) if form == "tag" else _last_box(text)
            if found is not None:
                return found
            end = min(end, opened)
    if not finished and end == len(text):
        end = text.rfind("\n") + 1
    text = text[:end].rstrip()
    for form in forms:
        if form not in CLOSED and (found := _OPEN_FORMS[form](text)):
            return found
    return None


def spoken(text: str) -> str:
    """What a completion says to others: the text behind the last `</think>`; nothing where a `<think>` stays open."""
    text = text.rpartition("</think>")[2]
    return text.partition("<think>")[0]


def boxes(text: str) -> tuple[list[tuple[int, int]], int]:
    r"""Start and end of the content of each complete `\boxed{...}`, and where an unclosed one begins (else the length)."""
    complete: list[tuple[int, int]] = []
    stack: list[re.Match[str]] = []
    for match in _BOX.finditer(text):
        if match[1] or match[0] == "{":
            stack.append(match)
        elif match[0] == "}" and stack:
            opening = stack.pop()
            if opening[1]:
                complete.append((opening.end(), match.start()))
    return complete, next((m.start() for m in stack if m[1]), len(text))


def last_line(text: str) -> str:
    """The last line that is not blank, stripped; "" where there is none."""
    text = text.rstrip()
    return text[text.rfind("\n") + 1 :].strip()


def _last_tag(text: str) -> tuple[str | None, int]:
    """Content of the last complete pair, and where an open tag begins that nothing closes."""
    found, opened = None, None
    for match in _TAG.finditer(text):
        if match[0] == "<answer>":
            opened = match
        elif opened:
            found, opened = text[opened.end() : match.start()].strip(), None
    return found, opened.start() if opened else len(text)


def _last_box(text: str) -> tuple[str | None, int]:
    complete, opened = boxes(text)
    if not complete:
        return None, opened
    start, end = max(complete)  # of nested boxes the inner one starts later
    return text[start:end].strip(), opened


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def _hash(text: str) -> str | None:
    """What follows the last `####`; a heading of that level, with prose under it, is none."""
    last = _last(_HASH, text)
    if last is None:
        return None
    line, _, rest = text[last.end() :].partition("\n")
    return line.strip() if not rest.strip() or quantities.is_number(line) else None


def _answer_is(text: str) -> str | None:
    last = _last(_ANSWER_IS, text)
    if last is None:
        return None
    line = text[last.end() :].partition("\n")[0]
    return _SENTENCE_END.split(line, maxsplit=1)[0].strip(" \t*_`")


def _equation(text: str) -> str | None:
    line = last_line(text)
    if quantities.is_number(line):  # "x=2 or x=3" is one answer, not the equation "... = 3"
        return line if "=" in line else None
    side = _EQUALS.split(line[-2 * quantities.LONGEST :])
    return side[-1].strip() if len(side) > 1 and quantities.is_number(side[-1]) else None


def _whole(text: str) -> str | None:
    return text.strip() if quantities.is_number(text) else None


def _last_number(text: str) -> str | None:
    last = _last(_NUMBER, text)
    return last[0] if last else None


_OPEN_FORMS = {
    "hash": _hash,
    "answer_is": _answer_is,
    "equation": _equation,
    "whole": _whole,
    "last_number": _last_number,
}
