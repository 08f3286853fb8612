"""The search space: Hydra's sweep syntax as Optuna distributions, and a trial's values as overrides again."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from grpo_exp.command_line import parse
from grpo_exp.errors import ConfigError, nearest

SHOWN = 20
"""Values of a range up to which each is checked before a sweep begins; of a longer one, both ends and one within."""
Value = None | bool | int | float | str
Values = Mapping[str, Value]
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class Comparison:
    """`KEY OP VALUE`, such as `beta > 0` or `kl/median <= 0.5`."""

    key: str
    op: str
    value: Value

    @classmethod
    def read(cls, text: str, where: str) -> Comparison:
        """Take it apart.

        Raises:
            ConfigError: it has another form.
        """
        match = re.fullmatch(r"\s*([\w./@-]+)\s*(==|!=|<=|>=|<|>)\s*(\S+)\s*", text)
        if not match:
            raise ConfigError(f"{where}={text!r}: expected KEY OP VALUE with one of {' '.join(_COMPARE)}, such as 'beta > 0'")
        return cls(match[1], match[2], _plain(match[3]))

    def holds(self, value: Value) -> bool:
        """Whether a value of the key satisfies it; a missing one (None) or one that cannot be compared does not."""
        try:
            return value is not None and _COMPARE[self.op](value, self.value)
        except TypeError:
            return False


@dataclass(frozen=True)
class Space:
    """What is searched.

    Attributes:
        distributions: by key; a categorical one holds numbers, truth values and texts.
        written: for each categorical key, how each of its values, by its repr, was written.
        conditions: keys that are only searched where another key's value satisfies a comparison.
        fixed: the overrides that all trials share.
    """

    distributions: dict[str, BaseDistribution]
    written: dict[str, dict[str, str]]
    conditions: dict[str, Comparison]
    fixed: list[str]

    @classmethod
    def read(cls, words: Sequence[str], params: Mapping[str, Any], conditions: Mapping[str, str] | None) -> Space:
        """Read overrides: those of the command line, and those of a sweep file's params, which the former replace.

        `choice(a,b)` and `a,b` are categories; `interval(a,b)` is continuous, `int(interval(a,b))` of whole numbers, and
        `tag(log,interval(a,b))` logarithmic; `range(a,b,step)` has steps and leaves b out, as everywhere in Hydra.

        Raises:
            ConfigError: one cannot be read or cannot be searched.
        """
        conditions = conditions or {}
        parsed = {(o := parse(f"{key}={_text(value)}")).get_key_element(): o for key, value in params.items()}
        parsed |= {(o := parse(word)).get_key_element(): o for word in words}
        distributions: dict[str, BaseDistribution] = {}
        written: dict[str, dict[str, str]] = {}
        fixed = []
        for key, override in parsed.items():
            if override.is_sweep_override():
                distributions[key], written[key] = _distribution(override)
            else:
                fixed.append(str(override.input_line))
        read = {key: Comparison.read(text, f"hydra.sweeper.conditions.{key}") for key, text in conditions.items()}
        for key, comparison in read.items():
            for name in (key, comparison.key):
                if name not in distributions:
                    near = nearest(name, distributions)
                    raise ConfigError(
                        f"hydra.sweeper.conditions.{key}={conditions[key]!r}: {name} is not searched, only "
                        f"{', '.join(distributions)}.{near}"
                    )
        return cls(distributions, written, read, fixed)

    @property
    def size(self) -> int | None:
        """Combinations of values in a finite space, those that conditions make equal counted apart; else None."""
        counts = [_count(d) for d in self.distributions.values()]
        return None if None in counts else math.prod(n for n in counts if n is not None)

    def points(self) -> Iterator[dict[str, Value]]:
        """Every point of a finite space in the order of a grid, the last key fastest, each once."""
        choices = [_steps(d) or [] for d in self.distributions.values()]
        seen = set()
        for combination in itertools.product(*choices):
            point = self.active(dict(zip(self.distributions, combination, strict=True)))
            if (identity := identity_of(point)) not in seen:
                seen.add(identity)
                yield point

    def corners(self) -> list[dict[str, Value]]:
        """Few points that have each value of a list, and both ends of each interval and a point within, at least once."""
        ends = {key: _few(d) for key, d in self.distributions.items()}
        count = max(map(len, ends.values()), default=1)
        return [self.active({key: values[min(i, len(values) - 1)] for key, values in ends.items()}) for i in range(count)]

    def active(self, values: Values) -> dict[str, Value]:
        """The values whose conditions hold."""
        kept: dict[str, Value] = {}
        for key in self._ordered():
            if key in values and self.wanted(key, kept):
                kept[key] = values[key]
        return {key: kept[key] for key in self.distributions if key in kept}

    def wanted(self, key: str, values: Values) -> bool:
        """Whether a key is searched, given the values of those before it."""
        condition = self.conditions.get(key)
        return condition is None or condition.holds(values.get(condition.key))

    def _ordered(self) -> list[str]:
        """Keys with conditions after those that they depend on.

        Raises:
            ConfigError: conditions go in a circle.
        """
        order: list[str] = []
        waiting = list(self.distributions)
        while waiting:
            ready = [k for k in waiting if k not in self.conditions or self.conditions[k].key in order]
            if not ready:
                raise ConfigError(f"hydra.sweeper.conditions: {', '.join(waiting)} depend on each other in a circle")
            order += ready
            waiting = [k for k in waiting if k not in ready]
        return order

    def suggest(self, trial: Any, prepare: Callable[[int], None] = lambda place: None) -> dict[str, Value]:
        """A trial's values, as the sampler suggests them one after the other; `prepare` is told the place of each new one."""
        values: dict[str, Value] = {}
        for place, key in enumerate(self._ordered()):
            if self.wanted(key, values):
                if key not in trial.params:
                    prepare(place)
                values[key] = _suggest(trial, key, self.distributions[key])
        return values

    def words(self, values: Values) -> list[str]:
        """Values as overrides of a run."""
        return [f"{key}={self.written.get(key, {}).get(repr(value), _text(value))}" for key, value in values.items()]

    def check(self, values: Mapping[str, Any], where: str) -> dict[str, Value]:
        """A given point, as values of this space.

        Raises:
            ConfigError: a key is not searched, or a value lies outside.
        """
        checked: dict[str, Value] = {}
        for key, value in values.items():
            if key not in self.distributions:
                raise ConfigError(
                    f"{where}: {key} is not searched; {', '.join(self.distributions)} are.{nearest(key, self.distributions)}"
                )
            distribution = self.distributions[key]
            try:
                inside = distribution._contains(distribution.to_internal_repr(value))
            except (ValueError, TypeError):
                inside = False
            if not inside:
                raise ConfigError(f"{where}: {key}={value!r} lies outside of {describe(distribution)}")
            checked[key] = value
        return checked

    def described(self) -> dict[str, str]:
        """Each key's values in words, for people and for telling two spaces apart."""
        found = {key: describe(d) for key, d in self.distributions.items()}
        return {
            key: text + (f" where {c.key} {c.op} {c.value}" if (c := self.conditions.get(key)) else "")
            for key, text in found.items()
        }


def describe(distribution: BaseDistribution) -> str:
    """`choice(4, 8, 16)`, `interval(0.001, 0.1) log`, `range(4, 16) step 4`: ends included."""
    if isinstance(distribution, CategoricalDistribution):
        return f"choice({', '.join(map(str, distribution.choices))})"
    assert isinstance(distribution, (IntDistribution, FloatDistribution))
    whole = isinstance(distribution, IntDistribution)
    step = None if whole and distribution.step == 1 else distribution.step
    ends = f"({distribution.low:g}, {distribution.high:g})"
    if step is not None:
        return f"range{ends} step {step:g}"
    kind = " of whole numbers" if whole else ""
    return f"interval{ends}{' log' if distribution.log else ''}{kind}"


def identity_of(values: Values) -> tuple[tuple[str, Value], ...]:
    """What makes two points the same, whatever the order of their keys."""
    return tuple(sorted(values.items()))


def _suggest(trial: Any, key: str, distribution: BaseDistribution) -> Value:
    """A value for one key from the trial's sampler."""
    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(key, distribution.choices)  # type: ignore[no-any-return]
    assert isinstance(distribution, (IntDistribution, FloatDistribution))
    suggest = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
    return suggest(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)  # type: ignore[no-any-return]


def _distribution(override: Override) -> tuple[BaseDistribution, dict[str, str]]:
    """One sweep override as a distribution, and for categories how they were written.

    Raises:
        ConfigError: an empty or impossible range.
    """
    sweep, word = override.value(), override.input_line
    try:
        if isinstance(sweep, ChoiceSweep):
            texts = {repr(_plain(str(text))): str(text) for text in override.sweep_string_iterator()}
            return CategoricalDistribution([_plain(text) for text in texts.values()]), texts
        if isinstance(sweep, RangeSweep):
            return _range(sweep), {}
        assert isinstance(sweep, IntervalSweep) and sweep.start is not None and sweep.end is not None
        log = "log" in sweep.tags
        if isinstance(sweep.start, int) and isinstance(sweep.end, int):
            return IntDistribution(sweep.start, sweep.end, log=log), {}
        return FloatDistribution(float(sweep.start), float(sweep.end), log=log), {}
    except ValueError as error:
        raise ConfigError(f"{word}: {error}") from error


def _range(sweep: RangeSweep) -> BaseDistribution:
    """A range without its end, as in Hydra."""
    assert sweep.start is not None and sweep.stop is not None
    if sweep.step <= 0 or sweep.stop <= sweep.start:
        raise ValueError("the range is empty; write range(START,STOP,STEP) with a rising one")
    count = -(-(sweep.stop - sweep.start) // sweep.step)
    if not count < 2**53:
        raise ValueError("the range has more values than can be counted; write range(START,STOP,STEP) with a larger STEP")
    last = sweep.start + (count - 1) * sweep.step
    if all(isinstance(x, int) for x in (sweep.start, sweep.stop, sweep.step)):
        return IntDistribution(int(sweep.start), int(last), step=int(sweep.step))
    return FloatDistribution(float(sweep.start), float(last), step=float(sweep.step))


def _steps(distribution: BaseDistribution) -> list[Value] | None:
    """All values of a finite distribution; None for a continuous one."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if isinstance(distribution, IntDistribution) and not distribution.log:
        return list(range(distribution.low, distribution.high + 1, distribution.step))
    if isinstance(distribution, FloatDistribution) and distribution.step is not None:
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        return [round(distribution.low + i * distribution.step, 12) for i in range(count)]
    return None


def _count(distribution: BaseDistribution) -> int | None:
    """How many values a finite distribution has; None for a continuous one."""
    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices)
    assert isinstance(distribution, (IntDistribution, FloatDistribution))
    if distribution.step is None or distribution.log:
        return None
    return round((distribution.high - distribution.low) / distribution.step) + 1


def _few(distribution: BaseDistribution) -> list[Value]:
    """Each value of a list or a short range; of a long one, and of an interval, both ends and one within."""
    count = _count(distribution)
    if isinstance(distribution, CategoricalDistribution) or (count is not None and count <= SHOWN):
        return _steps(distribution) or []
    if count is None:
        return _within(distribution)
    assert isinstance(distribution, (IntDistribution, FloatDistribution)) and distribution.step is not None
    return [distribution.low, distribution.low + count // 3 * distribution.step, distribution.high]


def _within(distribution: BaseDistribution) -> list[Value]:
    """Both ends of an interval and a point within, which is no whole number unless all are."""
    assert isinstance(distribution, (IntDistribution, FloatDistribution))
    low, high = distribution.low, distribution.high
    middle = low + (high - low) * 0.3819660113
    return [low, high, int(middle) if isinstance(distribution, IntDistribution) else middle]


def _plain(text: str) -> Value:
    """A written value as what it means: a number, true, false, null, or the text itself."""
    words: dict[str, Value] = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _text(value: Any) -> str:
    """A value as it is written in an override."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(_text(v) for v in value)
    return "null" if value is None else repr(value) if isinstance(value, float) else str(value)
