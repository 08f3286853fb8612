"""The short form: what a run's own first evaluation and first step show to be wrong, said while there is time to stop it.

It listens as a tracker does, and so costs nothing: no sample is drawn and no step is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from grpo_exp.preflight.base import Finding, percent
from grpo_exp.preflight.first_step import FirstStep
from grpo_exp.preflight.pass_rate import meaning
from grpo_exp.preflight.rehearsal import Rehearsal
from grpo_exp.track.base import Row, Tracker

if TYPE_CHECKING:
    from grpo_exp.config import Config
    from grpo_exp.preflight.options import PreflightOptions


class FirstLook(Tracker):
    """Says what is found, once, in a run that begins; of the trials of a sweep, in the first.

    Args:
        options: from where on a number is worth saying.
        say: told each finding, and "note" or "warn".
    """

    def __init__(self, config: Config, options: PreflightOptions, say: Callable[[str, str], None]) -> None:
        self.config, self.options, self.say = config, options, say
        self.on = False

    def start(self, card: Row, config: Row) -> None:
        self.on = card.get("resumed_from") is None and not card.get("trial") and self.config.algo.online

    def metrics(self, row: Row) -> None:
        kind, step = row.get("kind"), row.get("step")
        if not self.on or (kind, step) not in (("eval", 0), ("train", 1)):
            return
        found = (
            self._of_evaluation(row) if kind == "eval" else FirstStep.of(Rehearsal([row], 0), self.config).findings(self.config)
        )
        for finding in found:
            tries = f". Try {' or '.join(finding.tries)}" if finding.tries else ""
            self.say(finding.text + tries, "note" if finding.level == "note" else "warn")

    def evaluations(self, rows: Sequence[Row]) -> None:
        """The first evaluation's samples: whether any of them ended."""
        if self.on and rows and rows[0].get("step") == 0 and not any(row.get("finished") for row in rows):
            limit = self.config.eval.max_new_tokens
            self.say(
                f"no sample of the first evaluation ended within {limit} tokens: the limit is too low, the prompt is not in "
                f"the form that the model was trained on, or it never learned to end. Try max_new_tokens={2 * limit}",
                "warn",
            )

    def _of_evaluation(self, row: Row) -> Iterator[Finding]:
        rate, cut = row.get("eval/pass@1"), row.get("eval/truncated_frac")
        if isinstance(rate, float) and not self.options.hard <= rate <= self.options.easy:
            yield Finding("warn", f"pass@1 before training is {percent(rate)}: {meaning(rate, self.options)}")
        if isinstance(cut, float) and self.options.truncated < cut < 1:
            limit = self.config.eval.max_new_tokens
            yield Finding(
                "warn",
                f"{percent(cut)} of the samples of the first evaluation are cut off at {limit} tokens, mostly before an answer",
                [f"max_new_tokens={2 * limit}"],
            )
