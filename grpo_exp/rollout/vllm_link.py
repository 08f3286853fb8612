"""How vLLM is spoken to: over HTTP, or as a library.

The server is vLLM's own, started as

    VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 \\
        vllm serve MODEL --logprobs-mode processed_logprobs [--enable-lora --max-lora-rank 16]

Used of it: `/v1/models`, `/v1/completions` with token ids in and out, `/v1/load_lora_adapter` and `/v1/unload_lora_adapter` for
adapters, `/collective_rpc` with `reload_weights` and `/reset_prefix_cache` for whole models.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grpo_exp.errors import ConfigError, RunError
from grpo_exp.rollout.base import Sampling


@dataclass(frozen=True)
class Question:
    """A prompt's token ids, and the seed of its samples."""

    tokens: list[int]
    seed: int


@dataclass(frozen=True)
class Answer:
    """A sample: token ids, the end of sequence among them, their log-probs, and whether it ended by itself."""

    tokens: list[int]
    logp: list[float]
    finished: bool


class Link(Protocol):
    """A vLLM that can be given weights and asked for samples."""

    def load(self, folder: Path, adapter: bool) -> None:
        """Take the weights that the folder holds, those of an adapter or of the whole model; it may be removed afterwards."""

    def complete(self, questions: list[Question], sampling: Sampling, ends: list[int], stop: list[str]) -> list[list[Answer]]:
        """`sampling.samples` answers for each question."""


class Server:
    """vLLM behind an address.

    Raises, from all methods:
        RunError: it does not answer in time, or refuses.
    """

    def __init__(self, url: str, timeout: float, connections: int) -> None:
        self.url, self.timeout, self.connections = url.rstrip("/"), timeout, connections
        self._model: str | None = None
        self._adapter: tuple[str, Path] | None = None

    def check(self) -> None:
        """Raise ConfigError unless it answers at once or comes up in time."""
        try:
            self._served()
        except RunError as error:
            raise ConfigError(f"{error}. Start it as docs/engines.md says, or use rollout=torch") from error

    def load(self, folder: Path, adapter: bool) -> None:
        if adapter:
            # A name of its own: under the old one the server would take up keys and values of the old weights.
            name, before = folder.name, self._adapter
            self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
            self._adapter = name, folder
            if before is not None:
                self._post("/v1/unload_lora_adapter", {"lora_name": before[0]})
                shutil.rmtree(before[1])
        else:
            self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            self._post("/reset_prefix_cache", {})
            shutil.rmtree(folder)

    def complete(self, questions: list[Question], sampling: Sampling, ends: list[int], stop: list[str]) -> list[list[Answer]]:
        model = self._adapter[0] if self._adapter else self._served()

        def asked(question: Question) -> list[Answer]:
            body = {"model": model, "prompt": question.tokens, "return_token_ids": True}
            body |= _parameters(question, sampling, ends, stop)
            choices = sorted(self._post("/v1/completions", body)["choices"], key=lambda choice: choice["index"])
            return _all([self._answer(choice) for choice in choices], sampling)

        with ThreadPoolExecutor(self.connections) as pool:
            return list(pool.map(asked, questions))

    def _answer(self, choice: dict[str, Any]) -> Answer:
        tokens, logp = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if tokens is None or logp is None or len(tokens) != len(logp):
            raise RunError(
                f"rollout.url={self.url}: the server answers without token_ids or token_logprobs; it needs vLLM 0.14 or newer"
            )
        if choice["finish_reason"] not in ("stop", "length"):
            raise RunError(f"rollout.url={self.url}: a completion ended with finish_reason={choice['finish_reason']!r}")
        return Answer(tokens, logp, choice["finish_reason"] == "stop")

    def _served(self) -> str:
        """The name of the model that is served."""
        if self._model is None:
            self._model = str(self._request("/v1/models", None)["data"][0]["id"])
        return self._model

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request(path, json.dumps(body).encode())

    def _request(self, path: str, data: bytes | None) -> Any:
        """The answer to a request, which is made again while the server is down, busy or fails by itself."""
        end, pause = time.monotonic() + self.timeout, 0.1
        while True:
            left = end - time.monotonic()
            try:
                asked = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
                with urllib.request.urlopen(asked, timeout=max(left, 0.1)) as answer:
                    text = answer.read().decode()
                return json.loads(text) if text[:1] in ("{", "[") else text
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code}: {error.read().decode(errors='replace')[:300]}"
                if error.code < 500 and error.code != 429:
                    raise RunError(f"rollout.url={self.url}: the server refuses {path}, {reason}") from error
            except (OSError, ValueError) as error:  # no connection, one that broke off, half an answer
                reason = str(getattr(error, "reason", error)) or type(error).__name__
            if end - time.monotonic() < pause:
                raise RunError(f"rollout.url={self.url}: no answer to {path} in {self.timeout:g} s (rollout.timeout): {reason}")
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


class Colocated:
    """vLLM in this process. Between rollouts it sleeps: its weights go to the CPU, its keys and values are dropped.

    Args:
        base: folder of the model to start from.
        rank: largest rank of the adapters to come; 0 for whole models.
        memory: share of the GPU's memory that it may take while it is awake.
    """

    def __init__(self, base: Path, rank: int, memory: float) -> None:
        from vllm import LLM  # type: ignore[import-not-found,unused-ignore]

        adapters = {"enable_lora": True, "max_lora_rank": rank} if rank else {}
        self.llm = LLM(
            model=str(base),
            gpu_memory_utilization=memory,
            logprobs_mode="processed_logprobs",
            enable_sleep_mode=True,
            **adapters,
        )
        self._adapter: tuple[int, Path] | None = None
        self.llm.sleep(level=1)

    @staticmethod
    def check() -> None:
        """Raise ConfigError where vLLM is not installed."""
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError(
                "rollout=vllm without rollout.url needs vLLM in this process: pip install vllm (Linux, a GPU). Or start "
                "a server as docs/engines.md says and give rollout.url=, or use rollout=torch"
            )

    def load(self, folder: Path, adapter: bool) -> None:
        if adapter:
            before, number = self._adapter, 1 + (self._adapter[0] if self._adapter else 0)
            self._adapter = number, folder  # read when it is first asked for
            if before is not None:
                shutil.rmtree(before[1])
        else:
            self.llm.wake_up(tags=["weights"])
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
            self.llm.sleep(level=1)
            shutil.rmtree(folder)

    def complete(self, questions: list[Question], sampling: Sampling, ends: list[int], stop: list[str]) -> list[list[Answer]]:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest  # type: ignore[import-not-found,unused-ignore]

        parameters = [SamplingParams(**_parameters(question, sampling, ends, stop)) for question in questions]
        adapter = None
        if self._adapter is not None:
            number, folder = self._adapter
            adapter = LoRARequest(folder.name, number, str(folder))
        self.llm.wake_up()
        try:
            asked = [{"prompt_token_ids": question.tokens} for question in questions]
            results = self.llm.generate(asked, parameters, lora_request=adapter, use_tqdm=False)
        finally:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                self.llm.sleep(level=1)
        ordered = [sorted(result.outputs, key=lambda output: output.index) for result in results]
        return [_all([_answer(output) for output in outputs], sampling) for outputs in ordered]


def _parameters(question: Question, sampling: Sampling, ends: list[int], stop: list[str]) -> dict[str, Any]:
    """vLLM's sampling parameters, which have the same names both ways."""
    return {
        "n": 1 if sampling.temperature == 0 else sampling.samples,  # greedy samples are all the same, and vLLM gives but one
        "seed": question.seed,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_new_tokens,
        "stop_token_ids": ends,
        "stop": list(stop),
        "logprobs": 0,
    }


def _all(answers: list[Answer], sampling: Sampling) -> list[Answer]:
    """As many answers as were asked for, of those that `_parameters` gave."""
    return answers * sampling.samples if sampling.temperature == 0 else answers


def _answer(output: Any) -> Answer:
    tokens = list(output.token_ids)
    logp = [step[token].logprob for token, step in zip(tokens, output.logprobs, strict=True)]
    return Answer(tokens, logp, output.finish_reason == "stop")
