"""The options of `preflight`: how much it looks at, and from where on a number is worth a finding."""

from __future__ import annotations

from dataclasses import dataclass

from grpo_exp.options import option


@dataclass
class PreflightOptions:
    """What is looked at before a run, and what counts as a finding."""

    notes: bool = option("a run says what its first evaluation and its first step show to be wrong; both are made anyway")
    prompts: int = option("training prompts that the verb samples; 0 for all of them", low=0)
    samples: int = option("samples of each of these, at least; G where that is more", low=1)
    steps: int = option("training steps that the verb takes and undoes; the first is checked, the others are timed", low=1)
    trials: int = option("trials of a sweep that the cost is told for besides the run's own; 0 for none", low=0)
    price: float = option("what an hour of this machine costs, in any currency; 0: no cost is told", low=0)
    paper: bool = option(
        "the verb loads nothing and tries nothing: it says by the model's configuration alone what the profile would need on "
        "one device, and whether it fits"
    )
    size: str | None = option(
        "with paper: a published model of this size in place of the run's own: 0.5b, 1.5b, 3b, 7b, 14b, 32b, 70b",
        choices=("0.5b", "1.5b", "3b", "7b", "14b", "32b", "70b"),
    )
    prompt_tokens: int = option("with paper: tokens of the longest prompt", low=1)
    hard: float = option("pass@1 below this: the policy will hardly learn", low=0, high=1)
    easy: float = option("pass@1 above this: there is nothing to learn", low=0, high=1)
    fertile_low: float = option("lower end of the pass@1 from which most is learned", low=0, high=1)
    fertile_high: float = option("upper end of it", low=0, high=1)
    flat: float = option("share of groups without contrast that is still well", low=0, high=1)
    truncated: float = option("share of samples cut off at max_new_tokens that is still well", low=0, high=1)
    length_margin: float = option("max_new_tokens that is proposed, over the length that 99 % of the ended samples keep", low=1)
    distinct: float = option(
        "share of distinct completions among a prompt's samples below which the policy explores little", low=0, high=1
    )
    format: float = option(
        "share of samples in the asked format, or with an answer that can be read, that is still well", low=0, high=1
    )
    missed: float = option(
        "share of wrong samples that hold the reference, with no answer read, that is still well", low=0, high=1
    )
    mismatch: float = option(
        "mean gap of the sampler's and the model's log-probs, in nats, and of the first ratio from 1, that is still well", low=0
    )
    kl: float = option("mean KL to the reference before the first update that still counts as 0, in nats", low=0)
    memory: float = option("share of the memory that a run may need before it is worth a finding", low=0, high=1)
