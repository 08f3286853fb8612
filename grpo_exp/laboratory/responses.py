"""Responses with a label, right or wrong, that a reward is held against: generated, made of the data's own answers, or read.

A file has an object a line, with the response and its label, and the item it belongs to or all that the reward needs of it:

    {"id": "train-3", "response": "It is <answer>3</answer>", "right": true}
    {"prompt": "47-2=?", "answer": "45", "response": "It is 44.", "right": false}

`completion` is another name of `response`, so that lines of samples.jsonl need nothing but a label. A prompt without an answer
is looked for in the data; further fields are the item's own, such as `tests`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_exp.answers import quantities
from grpo_exp.answers.reference import reference_answer
from grpo_exp.batch import Example
from grpo_exp.errors import DataError, InputError
from grpo_exp.laboratory.problems import Problem, number, word_problems
from grpo_exp.laboratory.writing import Writing
from grpo_exp.rows.read import Row, RowFault, find_file, one_line, read_rows

NUMBERS = 3  # items of the data whose answers are spelled in all ways
GOLD = 100  # items of the data whose answers are stated as they are
MOSTLY = 0.9  # share of answers that are numbers, from which on all ways to spell numbers are tried
NOT_THE_ANSWER = "something else"
NAMES = ("response", "completion")


@dataclass(frozen=True)
class Response:
    """A response to an item, with the label that a careful reader gives it; `how` says what it is a case of."""

    example: Example
    text: str
    right: bool
    how: str


# ---- made


def spelled(examples: Sequence[Example], writing: Writing, own: bool, seed: int) -> list[Response]:
    """Right and wrong answers that are numbers, in many spellings; with `own` also to word problems made here."""
    rng = random.Random(f"responses-{seed}")
    numeric = [e for e in examples if (value := value_of(e)) is not None and value != 0]
    chosen = [(e, _about(e)) for e in rng.sample(numeric, min(NUMBERS, len(numeric)))]
    if own:
        columns = dict(examples[0].columns)
        made = enumerate(word_problems(seed))
        chosen += [(Example(f"word-{i}", p.prompt, p.reference, "words", None, columns), p) for i, p in made]
    found = [response for example, problem in chosen for response in _of_problem(example, problem, writing, rng)]
    return list({(r.example.id, r.text): r for r in found}.values())


def stated(examples: Sequence[Example], writing: Writing) -> list[Response]:
    """The reference answers as the reward reads them, worked targets, and as wrong ones the answers of other items."""
    answered = [e for e in examples if e.answer is not None][:GOLD]
    found = []
    for i, example in enumerate(answered):
        right = writing.all(str(example.answer))
        found.append(Response(example, right[i % len(right)], True, "the reference answer"))
        if example.target is not None:
            found.append(Response(example, example.target, True, "the worked target"))
        later = itertools.chain(answered[i + 1 :], answered[:i])
        others = (str(o.answer) for o in later if not alike(str(o.answer), str(example.answer)))
        wrong = writing.all(next(others, NOT_THE_ANSWER))
        found.append(Response(example, wrong[i % len(wrong)], False, "another answer"))
    return found


def numbers(examples: Sequence[Example]) -> bool:
    """Whether the answers are mostly numbers."""
    return sum(value_of(example) is not None for example in examples) >= MOSTLY * len(examples)


def value_of(example: Example) -> Any:
    """The reference answer as a number, None where it is anything else or has a unit."""
    if example.answer is None:
        return None
    items = quantities.parse(reference_answer(example.answer), reference=True).items
    plain = len(items) == 1 and not isinstance(items[0].value, str) and not (items[0].unit or items[0].percent)
    return items[0].value if plain else None


def _about(example: Example) -> Problem:
    return number("", value_of(example))


def _of_problem(example: Example, problem: Problem, writing: Writing, rng: random.Random) -> Iterator[Response]:
    for right, several in ((True, problem.right), (False, problem.wrong)):
        for spelling in several:
            if text := writing.some(spelling.text, spelling.plain, rng):
                yield Response(example, text, right, spelling.how)
    one, other = problem.right[0].text, problem.wrong[0].text
    for how, text, right in writing.corrections(one, other):
        yield Response(example, text, right, how)


def alike(one: str, other: str) -> bool:
    """Whether two answers are the same one."""
    return one.strip().casefold() == other.strip().casefold() or quantities.equal(
        reference_answer(one), reference_answer(other)
    )


# ---- read


def read(name: str, examples: Sequence[Example]) -> list[Response]:
    """The responses of a file.

    Raises:
        DataError: it cannot be read, or a row is not what it should be; the row is named.
    """
    by_id = {example.id: example for example in examples}
    by_prompt = {_prompt(example): example for example in examples}
    found = [_response(_whole(row), by_id, by_prompt) for row in read_rows(find_file(name, "responses"))]
    if not found:
        raise DataError(f"responses={one_line(name, 200)}: no rows; it is empty")
    if len({response.right for response in found}) < 2:
        which, other = ("right", "wrong") if found[0].right else ("wrong", "right")
        raise DataError(
            f"responses={one_line(name, 200)}: all of its {len(found)} responses are {which}. A reward that calls everything "
            f"{which} would agree; add {other} ones"
        )
    return found


def _whole(row: Row | RowFault) -> Row:
    if isinstance(row, RowFault):
        raise row
    return row


def _response(row: Row, by_id: dict[str, Example], by_prompt: dict[str, Example]) -> Response:
    fields = dict(row.fields)
    text = next((fields.pop(name) for name in NAMES if name in fields), None)
    right = fields.pop("right", None)
    if not isinstance(text, str):
        raise DataError(f"{row.place}: no text in 'response', what the reward is to judge. There are: {', '.join(row.fields)}")
    if not isinstance(right, bool):
        raise DataError(f"{row.place}: 'right' must be true or false, the label that a careful reader gives; got {right!r:.60}")
    return Response(_example(row, fields, by_id, by_prompt), text, right, str(fields.get("how") or row.place))


def _example(row: Row, fields: dict[str, Any], by_id: dict[str, Example], by_prompt: dict[str, Example]) -> Example:
    """The item that a row belongs to: one of the data, or one of its own."""
    name, prompt = fields.pop("id", None), fields.pop("prompt", None)
    if "answer" not in fields:
        if name is not None and str(name) in by_id:
            return by_id[str(name)]
        if isinstance(prompt, str) and prompt.strip() in by_prompt:
            return by_prompt[prompt.strip()]
        if name is not None:
            raise DataError(f"{row.place}: the data has no item with id {name!r:.60}; give its prompt and answer instead")
        if prompt is None and not fields:
            raise DataError(f"{row.place}: which item is this a response to? Give its id, or its prompt and answer")
    answer = fields.pop("answer", None)
    return Example(str(name or row.place), prompt or "", None if answer is None else str(answer), columns=fields)


def _prompt(example: Example) -> str:
    if isinstance(example.prompt, str):
        return example.prompt.strip()
    return "\n".join(message["content"] for message in example.prompt).strip()


def refuse_unlabelled(reward: str, why: str) -> InputError:
    """What is said where nothing tells right from wrong."""
    return InputError(
        f"reward={reward}: {why}, so nothing says which responses are right. Write some down, a line each, such as "
        '{"prompt": "...", "response": "...", "right": true}, right and wrong ones, and name the file: responses=FILE.jsonl; '
        "python -m grpo_exp help reward says more"
    )
