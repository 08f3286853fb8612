"""Group Relative Policy Optimization and its relatives: one class, whose options make each published variant."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from grpo_exp import advantages, losses
from grpo_exp.algos.base import PolicyGradient
from grpo_exp.batch import LossSum, Outputs, TokenBatch
from grpo_exp.errors import ConfigError
from grpo_exp.kl import KL, Reference
from grpo_exp.ops import whiten
from grpo_exp.options import option


@dataclass
class GRPO(PolicyGradient):
    """GRPO (DeepSeekMath, arXiv 2402.03300, equation 3): the reward's place in its group is the advantage of every token.

    The options make the variants of conf/algo: what is taken off a reward and what divides it, whether the ratio is a token's
    or a sequence's, what bounds it, how tokens add up, and where the KL term acts. Left out: process supervision (section
    4.1.3) and the iterated reward model (section 4.1.4).

    A group whose rewards are all equal has advantage exactly 0: only the KL term and the entropy bonus move the policy then.
    Not so without a baseline, where the advantage is the reward itself; with `whiten`, which takes off the mean over all tokens
    of the batch, not 0 where lengths differ; and with KL in the reward, where the rewards that count are those after it.
    """

    ratio: str = option("pi / pi_old of each token, or one for the row: the geometric mean", choices=("token", "sequence"))
    surrogate: str = option("what bounds the ratio", choices=("clip", "cispo", "cispo_two_sided", "sapo"))
    dual_clip: float | None = option("bound of the ratio where the advantage is negative; null for none", above=1)
    tau_pos: float = option("temperature of sapo's gate where the advantage is positive", above=0)
    tau_neg: float = option("temperature of sapo's gate elsewhere", above=0)
    baseline: str = option("what is taken off the reward", choices=("group_mean", "leave_one_out", "length_weighted", "none"))
    std: str = option("what the centred reward is divided by", choices=("group", "batch", "none"))
    std_ddof: int = option("degrees of freedom taken off in the standard deviation", low=0, high=1)
    std_eps: float = option("added to the standard deviation", low=0)
    whiten: bool = option("advantages get mean 0 and variance 1 over all tokens of the batch")
    kl: KL = option("the KL term")
    reference: Reference = option("what the KL is measured against")
    top_entropy: float = option("share of the batch's tokens that have an advantage: those of highest entropy", above=0, high=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.G < 2 and (self.baseline != "none" or self.std == "group"):
            raise ConfigError(
                f"G={self.G}: the advantage is the reward's distance from the mean of its group, which needs two samples "
                "a prompt at least. Use G=2 or more, 8 being common, or algo=reinforce_pp, which needs no group"
            )
        if self.baseline == "none" and self.std != "none":
            raise ConfigError(
                f"algo.baseline=none with algo.std={self.std}: a standard deviation divides a distance from a mean, and equal "
                "rewards would be divided by 0. Use algo.std=none, and algo.whiten=true to bring advantages to one size"
            )
        if self.dual_clip is not None and self.surrogate != "clip":
            raise ConfigError(
                f"algo.dual_clip={self.dual_clip:g} belongs to algo.surrogate=clip, and the surrogate is {self.surrogate}. "
                "Use algo.dual_clip=null"
            )
        if self.reference.moves and not self.keeps_reference:
            raise ConfigError(
                f"algo.reference.update={self.reference.update}: with beta={self.beta:g}, algo.kl.place={self.kl.place} and "
                "algo.kl.report_every=0 there is no reference to move. Use algo.reference.update=fixed, or measure the KL to "
                "it with algo.kl.report_every=10"
            )

    # ---- what the loop asks

    @property
    def kl_term(self) -> KL:
        return self.kl

    @property
    def needs_old_logp(self) -> bool:
        """For a KL term in the reward too: the sampler's log-probs differ from the training forward's by rounding, and a group
        without contrast would have its standard deviation, and so its advantages, made of that."""
        return super().needs_old_logp or (self.needs_reference and self.kl.place == "reward")

    @property
    def moves_reference(self) -> bool:
        return self.reference.moves

    @property
    def needs_entropy(self) -> bool:
        return self.top_entropy < 1

    def reference_shift(self, step: int) -> float:
        return self.reference.shift(step)

    # ---- credit

    def credit(self, batch: TokenBatch) -> TokenBatch:
        batch, reward = self._without_truncated(batch), batch.credited  # [N]
        to_come: Tensor | float = 0.0
        if self.needs_reference and self.kl.place == "reward":
            price = self.weight.value * self._drift(batch)  # [N, T]
            if self.kl.credit == "sequence":
                reward = reward - price.sum(-1)
            else:
                to_come = advantages.sum_to_end(price, batch.mask)  # [N, T]
        length = batch.mask.sum(-1)  # [N]
        row = advantages.group_advantages(
            *(reward, batch.group, self.std, self.std_ddof, self.std_eps, self.baseline, length)  # type: ignore[arg-type]
        )
        advantage = row[:, None].expand_as(batch.tokens) - to_come  # [N, T]
        if self.whiten:
            advantage = whiten(advantage, batch.loss_mask)
        if self.top_entropy < 1:
            assert batch.entropy is not None
            advantage = advantage.masked_fill(~advantages.top_share(batch.entropy, batch.loss_mask, self.top_entropy), 0)
        return batch.with_(advantages=advantage)

    # ---- loss

    def loss(self, now: Outputs, batch: TokenBatch) -> LossSum:
        mask, count = batch.loss_mask, self.count(batch)
        old = now.logp.detach() if batch.old_logp is None else batch.old_logp
        ratio = losses.policy_ratio(now.logp, old, batch.mask, mask, self.ratio)  # type: ignore[arg-type]  # [N, T]
        policy = self._surrogate(now.logp.masked_fill(~mask, 0), ratio, batch)
        total = policy_sum = self._sum(losses.weighted(policy.loss, batch.weights), mask)
        sums = {"loss/policy": (policy_sum.detach(), count)} | self._bounded(policy, mask)
        if self.needs_reference and self.kl.place == "loss":
            kl_sum = self._sum(losses.weighted(self._kl(now.logp, old, batch), batch.weights), mask)
            total = total + self.weight.value * kl_sum
            sums["loss/kl"] = (kl_sum.detach(), count)
        if self.entropy_coef:
            total = total - self.entropy_coef * self._sum(now.entropy, mask)
        return LossSum(total, sums, self._maxima(ratio, mask))

    def idle(self, batch: TokenBatch) -> Tensor:
        """Where neither KL nor entropy is in the loss, a row without an advantage has no gradient."""
        assert batch.advantages is not None
        if self.entropy_coef or (self.needs_reference and self.kl.place == "loss"):
            return super().idle(batch)
        return (batch.advantages == 0).all(-1)

    def _surrogate(self, logp: Tensor, ratio: Tensor, batch: TokenBatch) -> losses.Clipped:
        """The policy's term for each token, `[N, T]`."""
        assert batch.advantages is not None
        if self.surrogate == "clip":
            return losses.clipped_surrogate(ratio, batch.advantages, self.clip_low, self.clip_high, self.dual_clip)
        if self.surrogate == "sapo":
            return losses.sapo(ratio, batch.advantages, self.tau_pos, self.tau_neg)
        low = self.clip_low if self.surrogate == "cispo_two_sided" else None
        return losses.cispo(logp, ratio, batch.advantages, low, self.clip_high)

    def _kl(self, logp: Tensor, old: Tensor, batch: TokenBatch) -> Tensor:
        """The KL term for each token before its weight, `[N, T]`, 0 outside the loss mask."""
        assert batch.ref_logp is not None
        outside = ~batch.loss_mask
        here, ref = logp.masked_fill(outside, 0), batch.ref_logp.masked_fill(outside, 0)  # [N, T]
        ratio = losses.policy_ratio(logp, old, batch.mask, batch.loss_mask, "token") if self.kl.ratio_correction else None
        return losses.kl_penalty(here, ref, self.kl.estimator, self.kl.gradient, ratio)  # type: ignore[arg-type]

    # ---- in words

    def formula(self) -> str:
        terms = self._surrogate_formula() + self._kl_formula()
        terms += f" - {self.entropy_coef:g} entropy" if self.entropy_coef else ""
        rows = ", truncated rows left out" if self.mask_truncated else ""
        ratio = "pi / pi_old" if self.ratio == "token" else "exp(mean over the row's tokens of log pi / pi_old)"
        moving = self.reference.formula() if self.needs_reference else ""
        parts = (
            f"{self._mean_formula()} of [{terms}]",
            f"r = {ratio}",
            f"A = {self._advantage_formula()}{rows}",
            *(self.weight.formula(), moving, self._updates_formula()),
        )
        return ";  ".join(part for part in parts if part)

    def _surrogate_formula(self) -> str:
        low, high = f"{1 - self.clip_low:g}", f"{1 + self.clip_high:g}"
        if self.surrogate == "sapo":
            return f"-4 / tau sigmoid(tau (r - 1)) A, tau = {self.tau_pos:g} where A > 0, else {self.tau_neg:g}"
        if self.surrogate == "cispo":
            return f"-sg(min(r, {high})) A log pi"
        if self.surrogate == "cispo_two_sided":
            return f"-sg(clip(r, {low}, {high})) A log pi"
        least = f"min(r A, clip(r, {low}, {high}) A)"
        return f"-{least}" if self.dual_clip is None else f"-({least}, where A < 0 at least {self.dual_clip:g} A)"

    def _kl_formula(self) -> str:
        if not self.needs_reference or self.kl.place != "loss":
            return ""
        gradient = "" if self.kl.gradient == "estimator" else ", gradient of k2"
        ratio = "" if not self.kl.ratio_correction else "r_t " if self.kl.gradient == "estimator" else "sg(r_t) "
        token = " with r_t = pi / pi_old" if ratio and self.ratio == "sequence" else ""
        return f" + {self.weight.symbol} {ratio}{self.kl.estimator}(pi, ref{gradient}){token}"

    def _advantage_formula(self) -> str:
        in_reward = self.needs_reference and self.kl.place == "reward"
        reward = "R'" if in_reward and self.kl.credit == "sequence" else "R"
        off = {
            "group_mean": f"mean_group {reward}",
            "leave_one_out": f"mean_others {reward}",
            "length_weighted": f"mean_group[by length] {reward}",
        }
        advantage = f"({reward} - {off[self.baseline]})" if self.baseline in off else reward
        advantage += "" if self.std == "none" else f" / (std_{self.std}[ddof {self.std_ddof}] + {self.std_eps:g})"
        price = f"{self.weight.symbol} sum over tokens of {self.kl.estimator}(pi, ref)"
        if in_reward and self.kl.credit == "token":
            advantage += f" - {price.replace('tokens', 'tokens from t on')}"
        if self.whiten:
            advantage = f"whitened over tokens[{advantage}]"
        if self.top_entropy < 1:
            advantage += f", 0 but for the {self.top_entropy:.12g} of tokens with highest entropy"
        return advantage + (f";  R' = R - {price}" if reward == "R'" else "")
