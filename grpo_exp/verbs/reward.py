"""try a reward before training: reward reward=math data=arithmetic [responses=FILE model=tiny]

    python -m grpo_exp reward reward=math data=arithmetic              labelled responses, then attacks, then a verdict
    python -m grpo_exp reward reward=custom reward.path=my_rewards.py:score data=file data.path=my.jsonl
    python -m grpo_exp reward reward=math data=file data.path=my.jsonl responses=labelled.jsonl out=outputs/rewards/mine
    python -m grpo_exp reward reward=math model=tiny                   also 50 samples of a model: those that earn nothing

responses=FILE has a JSON object a line: `response` (or `completion`), `right` (true or false), and the item by its `id`, or its
`prompt` and `answer` and whatever else the reward needs. Without it, answers that are numbers are written in hundreds of right
and wrong ways, and other reference answers as they are. Where the reward looks at no answer, responses=FILE is needed.

limit=N tries N of the labelled responses; misses=0.02 lets the reward miss that share of the right ones; seed= chooses other
responses. Options of data, reward, model, rollout and hardware may be given, and temperature and max_new_tokens for samples.

Exit code 0: the reward agrees with every label, and no attack earns more than a wrong answer does. 3: it does not. 2: wrong
input. An attack that holds the right answer in an odd way, or that shaping pays for, is only called suspicious. out=FOLDER
keeps everything: reward.json, responses.jsonl, attacks.jsonl, samples.jsonl, config.yaml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo_exp.errors import DataError, InputError
from grpo_exp.paths import expanded

if TYPE_CHECKING:
    from grpo_exp.laboratory.bench import Request

USAGE = "usage: python -m grpo_exp reward reward=NAME data=NAME [KEY=VALUE ...]; python -m grpo_exp help reward says more"
OWN = ("responses", "out", "limit", "misses")
ALSO = ("reward/part", "seed", "temperature", "max_new_tokens")


def main(words: list[str]) -> int:
    """Try the reward; 3 where it is not to be trusted.

    Raises:
        InputError: a wrong option, data or responses that do not fit, or nothing that says which responses are right.
        RunError: the result cannot be written.
    """
    from grpo_exp import config as configuration
    from grpo_exp.laboratory import account, bench
    from grpo_exp.subject import Subject
    from grpo_exp.subject import configuration as configure

    own, overrides = _own(words)
    composed = configure(Subject("reward", None), overrides, "reward", ALSO)
    config = configuration.build(composed, judged=False)
    found = bench.findings(config, _request(own, overrides))
    folder = expanded(own["out"]) if "out" in own else None
    if folder is not None:
        found.write(folder, configuration.resolved(composed), configuration.secret_values(composed))
    written = [] if folder is None else [f"written to {folder}"]
    print("\n".join([*account.lines(found, kept=folder is not None), *written]))
    return 3 if found.faults() else 0


def _own(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The words that are this verb's alone, by name, and the others.

    Raises:
        InputError: one that has no meaning here.
    """
    odd = next((word for word in words if "=" not in word and not word.startswith(("~", "--"))), None)
    if odd is not None and words[words.index(odd) - 1] != "--config-dir":
        raise InputError(f"'{odd}': expected KEY=VALUE. {USAGE}")
    pairs = [word.partition("=") for word in words if word.partition("=")[0] in OWN]
    for name, _, value in pairs:
        if not value:
            raise InputError(f"{name}=: it has no value. {USAGE}")
    return {name: value for name, _, value in pairs}, [word for word in words if word.partition("=")[0] not in OWN]


def _request(own: dict[str, str], overrides: list[str]) -> Request:
    from grpo_exp.laboratory.bench import Request

    asked = any(word.partition("=")[0].partition(".")[0] == "model" for word in overrides)
    limit, misses = _number(own, "limit", int, 1, 10**9), _number(own, "misses", float, 0, 1)
    return Request(own.get("responses"), limit, misses or 0.0, asked)


def _number(own: dict[str, str], name: str, kind: type[Any], low: float, high: float) -> Any:
    """The value of one of this verb's words as a number, None where it was not given."""
    if name not in own:
        return None
    try:
        value = kind(own[name])
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        what = "a whole number" if kind is int else "a number"
        raise DataError(f"{name}={own[name]!r:.40}: expected {what} from {low:g} to {high:g}")
    return value
