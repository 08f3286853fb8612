"""A reward on the bench: labelled responses, attacks and samples, one after the other."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_exp.answers.reference import reference_answer
from grpo_exp.batch import Example
from grpo_exp.laboratory import holes, labels, responses, samples, spellings
from grpo_exp.laboratory.attacks import Target
from grpo_exp.laboratory.findings import Findings
from grpo_exp.laboratory.responses import Response
from grpo_exp.laboratory.trial import Trial
from grpo_exp.laboratory.writing import SLOT, Writing, kept, names_forms, offered
from grpo_exp.rewards.base import stand_in

if TYPE_CHECKING:
    from grpo_exp.config import Config

ATTACKED = 3  # items
LOOKED_AT = 1000  # items of the data, evenly spread, that the responses made here are about
PROBED = 3  # items on which it is found out which forms a reward reads


@dataclass(frozen=True)
class Request:
    """What a person asks for besides the configuration.

    Attributes:
        responses: the file of labelled responses; None: they are made.
        limit: the most of them that are tried; None: all.
        misses: the share of right responses that the reward may miss.
        samples: whether a model's completions are sampled too.
    """

    responses: str | None = None
    limit: int | None = None
    misses: float = 0.0
    samples: bool = False


def findings(config: Config, request: Request) -> Findings:
    """Try the reward.

    Raises:
        InputError: the data has nothing of what the reward needs, or nothing says which responses are right.
    """
    from grpo_exp.stop import StopSignals

    with StopSignals() as stop, stop.at_once("before the reward was tried"):
        data = config.data.load()
        config.reward.check_data(data.train)
        trial, seed = Trial(config.reward), config.root.seed
        given = [] if request.responses is None else responses.read(request.responses, [*data.train, *data.heldout])
        some = data.train[:: max(1, len(data.train) // LOOKED_AT)]
        answered = [e for e in (*some, *(r.example for r in given)) if e.answer is not None]
        writing, notes = _writing(trial, answered)
        labelled, source = (given, f"from {request.responses}") if given else _made(config, answered, writing)
        chosen = _some(labelled, request.limit, seed)
        held = labels.held(trial, chosen)
        pace = trial.pace()
        targets = _targets(answered or [r.example for r in chosen], writing, seed)
        tried = [one for target in targets for one in holes.tried(trial, target)]
        sampled, more = samples.sampled(config, data, trial) if request.samples else (None, [])
    about, notes = f"{config.data.name}: {data.source}", [*data.notes, *notes, *more]
    return Findings(_in_words(config), about, held, source, tried, pace, request.misses, sampled, notes)


def _in_words(config: Config) -> str:
    parts = [f"{part.weight:g} × {name} ({part.role})" for name, part in config.reward.parts.items()]
    return "; ".join([" + ".join(parts), *filter(None, [config.reward.formula()])])


# ---- forms of answers


def _writing(trial: Trial, answered: Sequence[Example]) -> tuple[Writing, list[str]]:
    """How answers are stated, and a note where that had to be found out."""
    part, gated = trial.rewards.outcome_part, bool(trial.rewards.gates)
    templates, named = offered(part), names_forms(part)
    if (named and not gated) or not answered or part.reads == "form":
        return kept(part, templates if named else templates[:1], gated), []
    probe = Writing(part, templates, gated, not named)
    some = answered[:PROBED]
    values = [trial.values([(example, text) for text in probe.all(reference_answer(str(example.answer)))]) for example in some]
    read = [
        template for i, template in enumerate(templates) if any(not row[i].closed if named else row[i].right for row in values)
    ]
    if read:
        shown = ", ".join(repr(template.replace(SLOT, "5")) for template in read)
        return kept(part, read, gated), [] if named else [f"answers are stated as this reward reads them: {shown}"]
    forms = ", ".join(repr(template.replace(SLOT, "5")) for template in templates)
    note = f"it reads the reference answer in none of these forms: {forms}. If it reads another, give responses=FILE"
    return kept(part, templates[:1], gated), [note]


# ---- responses


def _made(config: Config, answered: Sequence[Example], writing: Writing) -> tuple[list[Response], str]:
    """Labelled responses to the data's own items, and where they come from.

    Raises:
        InputError: there are no answers, or the reward looks at none.
    """
    part = config.reward.outcome_part
    if part.reads == "form":
        raise responses.refuse_unlabelled(config.reward_name, "it looks at no answer")
    if not answered:
        raise responses.refuse_unlabelled(config.reward_name, f"the items of data={config.data.name} have no reference answers")
    if part.reads == "numbers" and responses.numbers(answered):
        own = getattr(config.data, "kind", "") == "arithmetic"
        found = responses.spelled(answered, writing, own, config.root.seed)
        if found:
            more = " and of word problems of its own" if own else ""
            return found, f"made by grpo_exp of the data's answers{more}, seed {config.root.seed}"
    return responses.stated(answered, writing), "the data's own answers, right and exchanged"


def _some(found: list[Response], limit: int | None, seed: int) -> list[Response]:
    """At most `limit` of them, drawn by the seed."""
    if limit is None or len(found) <= limit:
        return found
    chosen = set(random.Random(f"limit-{seed}").sample(range(len(found)), limit))
    return [response for i, response in enumerate(found) if i in chosen]


# ---- targets


def _targets(examples: Sequence[Example], writing: Writing, seed: int) -> list[Target]:
    """Items to attack, each with a wrong answer."""
    distinct = list({(e.answer, str(e.prompt)): e for e in examples}.values())
    chosen = random.Random(f"attacks-{seed}").sample(distinct, min(ATTACKED, len(distinct)))
    return [Target(e, writing, _wrong(e, distinct), stand_in(e, [""]).prompts[0]) for e in chosen]


def _wrong(example: Example, others: Sequence[Example]) -> str:
    """A wrong answer to an item: another number, or another item's."""
    value = responses.value_of(example)
    if value is not None:
        return spellings.write(value + 1)
    answers = (str(o.answer) for o in others if o.answer is not None)
    return next((a for a in answers if not responses.alike(a, str(example.answer))), responses.NOT_THE_ANSWER)
