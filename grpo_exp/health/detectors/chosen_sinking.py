"""DPO makes the chosen completions unlikely, too."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_exp.health.base import Detector, Seen
from grpo_exp.health.course import Course
from grpo_exp.health.series import Points, falling, joined, points, stretches, values
from grpo_exp.options import option

STRETCHES = 10
"""Means that a curve is told by."""


@dataclass
class ChosenSinking(Detector):
    """The log-probs of chosen and rejected completions both fall, while their margin grows.

    The loss sees only the difference, so it is content where both sink and the rejected sink faster. The probability goes to
    completions that nobody judged (likelihood displacement, arXiv 2410.08847; the same failure in arXiv 2402.13228). Some of it
    is common and does no harm, so a long and steady fall is asked for. Log-probs count by the token where lengths are known:
    else batches of longer pairs would look like it.
    """

    fall: float = option(
        "fall of the chosen completions' log-prob in nats a token, from the run's first tenth to its last", above=0
    )
    relative: float = option("where lengths are not known: fall as a share of the log-prob at the start", above=0)
    steady: float = option("share of pairs of tenths of the run in which the later is lower; 0.5 is no trend", low=0.5, high=1)
    steps: int = option("training steps with pairs that there must be", low=STRETCHES)

    title = "chosen completions get less likely"
    metric = "logp/chosen"
    needs = ("logp/chosen", "logp/rejected", "dpo/margin")

    def look(self, course: Course) -> Seen | None:
        by_token = bool(points(course, "length/chosen")) and bool(points(course, "length/rejected"))
        series = {name: self._logp(course, name, by_token) for name in ("chosen", "rejected")}
        series["margin"] = points(course, "dpo/margin")
        if min(map(len, series.values())) < self.steps:
            return None
        tenths = {name: stretches(values(one), STRETCHES) for name, one in series.items()}
        fell = {name: one[0] - one[-1] for name, one in tenths.items()}
        least = self.fall if by_token else self.relative * abs(tenths["chosen"][0])
        steady = falling(tenths["chosen"])
        if fell["chosen"] < least or fell["rejected"] <= 0 or fell["margin"] >= 0 or steady < self.steady:
            return None
        unit = "nats a token" if by_token else "nats"
        return Seen(
            since=self._since(series["chosen"], tenths["chosen"]),
            text=f"the log-prob of chosen ones fell from {tenths['chosen'][0]:.3g} to {tenths['chosen'][-1]:.3g} {unit}, that "
            f"of rejected ones by {fell['rejected']:.3g}, while the margin grew to {tenths['margin'][-1]:.3g}",
            why="the loss sees the difference alone: both sink, and what they lose goes to completions that nobody judged",
            values={"chosen": -fell["chosen"], "rejected": -fell["rejected"], "dpo/margin": tenths["margin"][-1]},
            tries=[course.scaled("beta", 3), course.scaled("lr", 1 / 3), *self._other_loss(course)],
        )

    def _logp(self, course: Course, name: str, by_token: bool) -> Points:
        if not by_token:
            return points(course, f"logp/{name}")
        return joined(course, (f"logp/{name}", f"length/{name}"), lambda logp, length: logp / max(length, 1.0))

    def _since(self, series: Points, tenths: list[float]) -> int:
        """The first step of the last tenth that was not yet below the first."""
        last = max(index for index, value in enumerate(tenths) if value >= tenths[0])
        return series[round(last * len(series) / STRETCHES)][0]

    def _other_loss(self, course: Course) -> list[str]:
        """IPO has a finite target for the difference (arXiv 2310.12036), so that it does not push on for ever."""
        return ["algo.loss_type=ipo"] if course.option("algo.loss_type") not in ("ipo", "ipo_mean") else []
