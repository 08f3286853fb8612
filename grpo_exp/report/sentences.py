"""What a comparison says, in sentences: which differences are real, which cannot be told apart, what would suffice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo_exp import stats
from grpo_exp.report.standing import ALPHA, Standing, Versus
from grpo_exp.stats import Interval
from grpo_exp.track.wording import is_share, number

if TYPE_CHECKING:
    from grpo_exp.report.compare import Comparison

LISTED = 4  # settings named in one sentence
FEW_SEEDS = 3
MANY = 100  # seeds that nobody runs


def sentences(comparison: Comparison) -> list[str]:
    """Each is complete in itself; the first says what is best."""
    final, metric = comparison.final, comparison.metric
    if not final:
        return _unfinished(comparison)
    if len(final) == 1:
        return [*_one_setting(comparison, final[0]), *_about_the_rest(comparison)]
    best, others = final[0], final[1:]
    real = [s for s in others if s.versus and s.versus.real]
    open_ = [s for s in others if s.versus and not s.versus.real]
    return [
        _best(comparison, best),
        *_no_gain(comparison, best),
        *_real(metric, real, others, comparison.family),
        *_open(metric, open_, others, comparison.family),
        *_seeds(comparison, final),
        *_what_suffices(comparison, open_),
        *_picked(comparison, final),
        *_about_the_rest(comparison),
    ]


def shown(metric: str, value: float | None, unit: bool = True) -> str:
    """A value of a metric: `63.3 %`, `41.0`."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value:.1f}" + (" %" if unit else "") if is_share(metric) else number(value)


def span(metric: str, interval: Interval | None, unit: bool = True) -> str:
    """A value with its 95 % interval: `63.3 % (54.2–71.7)`."""
    if interval is None:
        return "–"
    text = shown(metric, interval.value, unit)
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return text
    low, high = (shown(metric, x, False) for x in interval[1:])
    return f"{text} ({low} to {high})" if interval.low < 0 else f"{text} ({low}–{high})"


def gap(metric: str, value: float) -> str:
    """The size of a difference: `12.3 points`, `4.20`."""
    return f"{abs(100 * value):.1f} points" if is_share(metric) else number(abs(value))


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def label(standing: Standing) -> str:
    return standing.group.label


# ---- parts


def _best(comparison: Comparison, best: Standing) -> str:
    began = "" if comparison.start is None else f", from {shown(comparison.metric, comparison.start)} before training"
    return f"Best: {label(best)}, {comparison.metric} {span(comparison.metric, best.interval)}{began}."


def _no_gain(comparison: Comparison, best: Standing) -> list[str]:
    """Where training has not helped, that comes before all comparisons."""
    start, interval = comparison.start, best.interval
    if start is None or interval is None:
        return []
    gain = interval.value - start if comparison.maximize else start - interval.value
    return [] if gain > 0 else ["No setting is better than the model was before training."]


def _real(metric: str, real: Sequence[Standing], others: Sequence[Standing], family: int) -> list[str]:
    if not real:
        return []
    named = [f"{label(s)} (by {gap(metric, s.versus.difference.value)}, {p_value(s.versus.p_holm)})" for s in real if s.versus]
    corrected = f", corrected for all {family:,} pairs of settings" if family > 1 else ""
    many = "the only other setting" if len(others) == 1 else f"{len(real)} of the {len(others)} others"
    settings = all(s.versus and s.versus.test == "settings" for s in real)
    verb = "It is better than" if settings else "Its model is better than that of"
    return [f"{verb} {many}{corrected}: {_listed(named)}."]


def _open(metric: str, open_: Sequence[Standing], others: Sequence[Standing], family: int) -> list[str]:
    if not open_:
        return []
    named = [f"{label(s)} ({_apart(metric, s.versus, family)})" for s in open_ if s.versus]
    which = str(len(open_)) if len(open_) < len(others) else f"any of the {len(others)} others"
    return [f"It cannot be told apart from {which if len(others) > 1 else 'the other one'}: {_listed(named)}."]


def _apart(metric: str, found: Versus, family: int) -> str:
    """How far the other is behind, with the interval: `2.1 points behind, -1.0 to 5.3`.

    An interval without 0 would seem to contradict the verdict: there the p-value before and after correction stands instead.
    """
    value, low, high = found.difference
    if found.p < ALPHA:
        return f"{gap(metric, value)} behind, {p_value(found.p)} alone, {found.p_holm:.2f} among {family:,} pairs"
    scale = 100 if is_share(metric) else 1
    ends = [f"{scale * x:.1f}" if scale == 100 else number(x) for x in (low, high)]
    return gap(metric, value) + (f" behind, {ends[0]} to {ends[1]}" if math.isfinite(low) else " behind")


def _seeds(comparison: Comparison, final: Sequence[Standing]) -> list[str]:
    if comparison.pooled:
        keys = " and ".join(comparison.pooled)
        return [f"The runs of a setting differ in {keys} as well, which widens all intervals."]
    fewest = min(s.seeds for s in final)
    if fewest == 1:
        most = max(s.seeds for s in final)
        who = "Every setting has one seed" if most == 1 else "Some settings have one seed"
        return [
            f"{who}: this compares trained models, not settings, and another seed may turn it round. "
            "Give each at least 3: -m seed=0,1,2"
        ]
    if fewest < FEW_SEEDS:
        return [f"With {fewest} seeds of a setting little is known of how far seeds lie apart: only large differences show."]
    return []


def _what_suffices(comparison: Comparison, open_: Sequence[Standing]) -> list[str]:
    """For the next best, what would tell it from the best among as many settings as here."""
    if not open_ or (found := open_[0].versus) is None or found.difference.value == 0:
        return []
    metric, unit, best = comparison.metric, comparison.unit, comparison.final[0]
    what = f"Telling {label(open_[0])} from the best, if the true difference is {gap(metric, found.difference.value)}"
    paths = []
    if found.seeds is not None and found.seeds <= MANY:
        paths.append(f"about {max(int(found.seeds), best.seeds + 1)} {unit} of each")
    if found.items is not None and math.isfinite(found.items):
        enough = f"about {number(max(int(found.items), best.values.shape[1] + 1))} held-out items"
        paths.append(f"{enough} with the {unit} there are" if found.seeds is not None else f"{enough} for these two models")
    if not paths:
        return [f"{what}, would take more than {MANY} {unit} of each."]
    return [f"{what}, would take {' or '.join(paths)}, to succeed in 4 of 5 cases."]


def _picked(comparison: Comparison, final: Sequence[Standing]) -> list[str]:
    if len(final) < 5 or not comparison.metric.startswith("eval/"):
        return []
    return [
        f"The best of {len(final)} was picked on the items that it is measured on, so its own number is somewhat too good; "
        "`evaluate` on other items tells by how much."
    ]


def _about_the_rest(comparison: Comparison) -> list[str]:
    out = []
    tokens = [s.tokens for s in comparison.final if s.tokens]
    if tokens and max(tokens) > 1.5 * min(tokens):
        out.append(
            f"The runs did not cost the same: {number(int(min(tokens)))} to {number(int(max(tokens)))} tokens. Part of a "
            "difference may be that."
        )
    unfinished = sum(not s.final for s in comparison.ranked)
    if unfinished and comparison.final:
        settings = "1 setting has" if unfinished == 1 else f"{unfinished} settings have"
        out.append(f"{settings} no final result and {'is' if unfinished == 1 else 'are'} not compared.")
    for part in comparison.apart:
        count = "1 run is" if len(part.runs) == 1 else f"{len(part.runs)} runs are"
        out.append(f"{count} not compared, {part.reason}.")
    return out


def _unfinished(comparison: Comparison) -> list[str]:
    best, metric = comparison.best, comparison.metric
    if best is None:
        first = "No run has been measured yet." if comparison.ranked else "No run can be judged."
        return [first, *_about_the_rest(comparison)]
    which = "Highest" if comparison.maximize else "Lowest"
    return [
        f"No run is finished. {which} so far: {label(best)}, {metric} {span(metric, best.interval)}.",
        *(["The order may change: runs are at different steps."] if len(comparison.ranked) > 1 else []),
        *_about_the_rest(comparison),
    ]


def _one_setting(comparison: Comparison, only: Standing) -> list[str]:
    metric = comparison.metric
    if only.seeds == 1:
        return _one_run(comparison, only)
    per_seed = only.values.mean(1)
    spread, unit = float(per_seed.std(ddof=1)), comparison.unit
    out = [
        f"{label(only)}: {metric} {span(metric, only.interval)} over {only.seeds} {unit}, from {shown(metric, per_seed.min())} "
        f"to {shown(metric, per_seed.max())}; two equal runs lie about {gap(metric, math.sqrt(2) * spread)} apart."
    ]
    if spread > 0:
        least = stats.detectable(2 * spread**2, only.seeds)
        out.append(
            f"With {only.seeds} {unit} of each, another setting would have to differ by about {gap(metric, least)} to be "
            "noticed in 4 of 5 cases."
        )
    return out


def _one_run(comparison: Comparison, only: Standing) -> list[str]:
    """Before and after, from the run's own card."""
    metric, run = comparison.metric, only.used[0]
    now = f"{metric} {span(metric, only.interval)}"
    if metric not in run.before:
        return [f"{now}. There is no evaluation before training to compare it with."]
    began = f"{span(metric, run.before[metric])} before training, {span(metric, only.interval)} after"
    if metric not in run.change:
        return [f"{metric}: {began}."]
    value, low, high = run.change[metric]
    direction = "more" if value > 0 else "less"
    scale = 100 if is_share(metric) else 1
    interval = f"95 % interval {scale * low:+.1f} to {scale * high:+.1f}"
    real = low > 0 or high < 0
    verdict = f"{gap(metric, value)} {direction} ({interval}, paired over items)"
    judged = f"{verdict}: a real change of this model." if real else f"{verdict}: it cannot be told from no change."
    return [f"{metric}: {began}; {judged}", "One seed: another run of the same command with another seed would differ."]


def _listed(named: Sequence[str]) -> str:
    if len(named) <= LISTED:
        return "; ".join(named)
    return "; ".join(named[:LISTED]) + f"; and {len(named) - LISTED} more"
