"""How answers are stated so that a reward reads them: in the forms that it names, or else those that it turns out to read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_exp.answers import forms
from grpo_exp.rewards.base import Reward

SLOT = "\ue000"  # stands where the answer goes; of no use in any text
BARE = {forms.WRITTEN["whole"].format(SLOT), forms.WRITTEN["equation"].format(SLOT)}
DENIED = ("The answer is not {0}.", "The answer isn't {0}.", "The answer is {1}, not {0}.", "The answer cannot be {0}.")
STATED = ("The answer is {0}, not {1}.", "So the answer is {0} because it is.", "**Final answer:** {0}", "Answer: {0}")
WORKING = ("Let me see.", "Step by step: this takes a moment.", "First I write down what is known, then I count.", "So:")


@dataclass(frozen=True)
class Writing:
    """The completions that state an answer.

    Attributes:
        part: the reward part that says right or wrong.
        templates: a completion for each form, with SLOT where the answer goes.
        alone: True where nothing may stand beside the answer, since a gate looks at the form.
        found: True where the part names no form of its own, so that `templates` are what it was seen to read.
    """

    part: Reward
    templates: list[str]
    alone: bool = False
    found: bool = False

    def all(self, answer: str) -> list[str]:
        """The answer in each form."""
        if self.found:
            return [template.replace(SLOT, answer) for template in self.templates]
        pairs = zip(self.part.writings(answer), offered(self.part), strict=True)
        return [text for text, template in pairs if template in self.templates]

    def one(self, answer: str) -> str:
        """The answer in the first form, as it is."""
        return self.templates[0].replace(SLOT, answer)

    def some(self, answer: str, plain: bool, rng: random.Random) -> str | None:
        """The answer in one of the forms, mostly after a line of working; None where no form takes what is not plain."""
        among = [template for template in self.templates if plain or template not in BARE]
        if "\n" in answer:  # what has no end of its own ends with the line
            among = [template for template in among if not template.endswith(SLOT)]
        if not among:
            return None
        template = rng.choice(among)
        text = template.replace(SLOT, answer)
        return text if self.alone or template in BARE else f"{rng.choice(WORKING)}\n{text}"

    def corrections(self, right: str, wrong: str) -> Iterator[tuple[str, str, bool]]:
        """Completions that state two answers, of which the last one counts: (what, text, whether it is right)."""
        for template in self.templates:
            if not self.alone and template not in BARE:
                first, last = template.replace(SLOT, wrong), template.replace(SLOT, right)
                yield "corrected to the right answer", f"{first}\nWait, that is not right.\n{last}", True
                yield "corrected to a wrong answer", f"{last}\nWait, that is not right.\n{first}", False
        if forms.WRITTEN["answer_is"].format(SLOT) in self.templates:
            yield from (("a sentence that denies it", text.format(right, wrong), False) for text in DENIED)
            yield from (("a sentence that states it", text.format(right, wrong), True) for text in STATED)


def offered(part: Reward) -> list[str]:
    """The forms that a reward part names, as templates; one that says nothing of forms is tried with all there are."""
    named = part.writings(SLOT)
    every = [form.format(SLOT) for form in forms.WRITTEN.values()]
    return named if names_forms(part) else list(dict.fromkeys([*named, *every]))


def names_forms(part: Reward) -> bool:
    """Whether the part's class says how it wants answers to be stated."""
    cls = type(part)
    return cls.written is not Reward.written or cls.writings is not Reward.writings or part.reads != "numbers"


def kept(part: Reward, templates: Sequence[str], alone: bool) -> Writing:
    """The writing in these forms, those that count for a working come first."""
    return Writing(part, sorted(dict.fromkeys(templates), key=lambda t: t in BARE), alone, not names_forms(part))
