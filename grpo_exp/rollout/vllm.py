"""Sampling by vLLM: a server of its own, or the library in this process. Needs a GPU, and vLLM 0.14 or newer.

The policy's weights go to it through a folder: what `from_pretrained` loads, written before the first rollout after they
changed. vLLM samples with kernels and roundings of its own, so its log-probs are not the training forward's: the loss weights
each token by min(pi / pi_sampler, `weight_max`) (arXiv 1802.01561, section 4), and `mismatch/*` shows how far apart they are.

Left out: weights over NCCL or CUDA handles, which spare the way through the file system; top-p and top-k, under which the
policy's own distribution would have to be cut off as vLLM cut it, and it does not say how.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from grpo_exp.batch import Prompts, Rollout
from grpo_exp.errors import ConfigError
from grpo_exp.options import option
from grpo_exp.rollout.base import Engine, Sampling
from grpo_exp.rollout.vllm_link import Answer, Colocated, Link, Question, Server

if TYPE_CHECKING:
    from grpo_exp.policy import Policy


@dataclass
class VLLMEngine(Engine):
    """Completions from vLLM; random numbers are keyed by prompt, so a step that is repeated asks for the same samples."""

    url: str | None = option("where the server listens, as http://localhost:8000; null: vLLM in this process")
    folder: str | None = option("where weights are written for it, seen by both under this path; null: a temporary folder")
    timeout: float = option("seconds that it may take to answer, or to come up", above=0)
    connections: int = option("prompts that are asked for at the same time", low=1)
    gpu_memory: float = option("share of the GPU's memory that vLLM in this process may take", above=0, high=1)

    @property
    def among(self) -> str:
        return "none" if self.url is None else "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.top_p < 1 or self.top_k > 0:
            raise ConfigError(
                f"rollout.top_p={self.top_p:g}, rollout.top_k={self.top_k}: vLLM does not say which tokens these left, so the "
                "policy's log-probs cannot be taken over the same; use rollout.top_p=1 rollout.top_k=0, or rollout=torch"
            )
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"rollout.url={self.url!r}: expected an address such as http://localhost:8000")
        self._link: Link | None = None
        self._sent: tuple[float, ...] | None = None
        self._versions = 0

    def check(self) -> None:
        if self.url is None:
            Colocated.check()
        else:
            Server(self.url, self.timeout, self.connections).check()

    def sample(self, policy: Policy, prompts: Prompts, sampling: Sampling, rows: int) -> Rollout:
        """As any engine; `rows` is left to vLLM, which fills its own memory."""
        link = self._synchronised(policy)
        questions = [
            Question(tokens[mask].tolist(), _seed(sampling, number))
            for number, (tokens, mask) in enumerate(zip(prompts.tokens, prompts.mask, strict=True))
        ]
        found = link.complete(questions, sampling, policy.eos_ids, self.stop)
        return self._rollout(policy, prompts, [answer for answers in found for answer in answers], sampling.samples)

    def _rollout(self, policy: Policy, prompts: Prompts, answers: list[Answer], samples: int) -> Rollout:
        def padded(rows: list[list[float]], empty: float, dtype: torch.dtype) -> Tensor:
            width = max(1, max(map(len, rows)))
            return torch.tensor(
                [row + [empty] * (width - len(row)) for row in rows], dtype=dtype, device=policy.device
            )  # [N, T]

        texts = policy.decode([answer.tokens for answer in answers])
        return Rollout(
            prompts,
            torch.arange(len(prompts), device=policy.device).repeat_interleave(samples),  # [N]
            padded([list(answer.tokens) for answer in answers], policy.pad_id, torch.long),
            padded([[True] * len(answer.tokens) for answer in answers], False, torch.bool),
            padded([answer.logp for answer in answers], 0.0, torch.float32),
            torch.tensor([answer.finished for answer in answers], device=policy.device),
            [text if (cut := self.cut(text)) is None else cut for text in texts],
        )

    def _synchronised(self, policy: Policy) -> Link:
        """vLLM with the policy's weights as they are now."""
        if self._link is None:
            if self.folder is not None:
                Path(self.folder).mkdir(parents=True, exist_ok=True)
            self._place = Path(tempfile.mkdtemp(prefix="grpo_exp_vllm_", dir=self.folder))
            weakref.finalize(self, shutil.rmtree, self._place, ignore_errors=True)
            self._link = self._connected(policy)
        # By value: torch's own count of writes does not see those of a fused optimizer.
        now = tuple(float(x.sum(dtype=torch.float64)) for x in policy.sent().values())
        if now != self._sent:
            self._versions += 1
            target = self._place / f"weights-{self._versions:06d}"
            policy.export_weights(target)
            self._link.load(target, adapter=policy.options.adapter == "lora")
            self._sent = now
        return self._link

    def _connected(self, policy: Policy) -> Link:
        if self.url is not None:
            return Server(self.url, self.timeout, self.connections)
        base = self._place / "base"
        policy.export_base(base)
        rank = policy.options.lora_rank if policy.options.adapter == "lora" else 0
        return Colocated(base, rank, self.gpu_memory)


def _seed(sampling: Sampling, prompt: int) -> int:
    """A seed for a prompt's samples."""
    return int(np.random.SeedSequence((*sampling.key, sampling.first_prompt + prompt)).generate_state(1)[0])
