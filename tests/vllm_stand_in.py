"""Stand-ins for vLLM with its documented interface: a server on loopback, and a module of the library's name.

Behind both is transformers: weights are loaded from the folders that were named, with `from_pretrained` or peft, and tokens are
drawn row by row with a seed. What kernels, memory and scheduling of the real one do is not shown by it.
"""

from __future__ import annotations

import json
import sys
import threading
import types
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


class Served:
    """A model in a folder, adapters by name, and what was asked of them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.model = AutoModelForCausalLM.from_pretrained(base)
        self.adapters: dict[str, Any] = {}
        self.lock = threading.Lock()

    def load_adapter(self, name: str, path: str) -> None:
        self.adapters[name] = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(self.base), path)

    def reload(self, path: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path)

    @torch.no_grad()
    def sample(
        self, prompt: list[int], model: str | None, seed: int, temperature: float, limit: int, ends: list[int]
    ) -> tuple[list[int], list[float], str]:
        """Token ids, log-probs of the distribution that was drawn from, finish reason."""
        generator = torch.Generator().manual_seed(seed)
        tokens: list[int] = []
        logps: list[float] = []
        with self.lock:
            while len(tokens) < limit:
                network = self.adapters.get(str(model), self.model)
                logits = network(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0, -1]
                logp = torch.log_softmax(logits / (temperature or 1), -1)
                token = int(torch.multinomial(logp.exp(), 1, generator=generator)) if temperature else int(logp.argmax())
                tokens.append(token)
                logps.append(logp[token].item())
                if token in ends:
                    return tokens, logps, "stop"
        return tokens, logps, "length"


class FakeServer:
    """`with FakeServer(base) as server:` answers at `server.url`; `faults` are answered first, one a request: an HTTP code, or
    "cut" for a connection that breaks off.
    """

    def __init__(self, base: Path) -> None:
        self.served = Served(base)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.faults: list[int | str] = []
        self.spoil: dict[str, Any] = {}
        """Fields that completions have instead of the right ones."""
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                owner.asked.append((self.path, body))
                fault = owner.faults.pop(0) if owner.faults else None
                if fault == "cut":
                    self.connection.close()
                    return
                code, value = (int(fault), "busy") if fault else owner.answer(self.path, body)
                data = (value if isinstance(value, str) else json.dumps(value)).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        served = self.served
        if path == "/v1/models":
            return 200, {"data": [{"id": "base"}, *({"id": name} for name in served.adapters)]}
        if path == "/v1/load_lora_adapter":
            served.load_adapter(body["lora_name"], body["lora_path"])
            return 200, "Success"
        if path == "/v1/unload_lora_adapter":
            del served.adapters[body["lora_name"]]
            return 200, "Success"
        if path == "/collective_rpc" and body["method"] == "reload_weights":
            served.reload(body["kwargs"]["weights_path"])
            return 200, {"results": [None]}
        if path == "/reset_prefix_cache":
            return 200, ""
        if path == "/v1/completions" and body["model"] in ("base", *served.adapters):
            return 200, {"choices": [self.choice(body, index) for index in range(body["n"])]}
        return 404, {"error": {"message": f"nothing at {path} for {body.get('model')}"}}

    def choice(self, body: dict[str, Any], index: int) -> dict[str, Any]:
        known = {"model", "prompt", "seed", "n", "temperature", "max_tokens", "stop_token_ids", "stop", "logprobs"}
        assert body.keys() == {*known, "return_token_ids"} and body["logprobs"] == 0 and body["return_token_ids"] is True
        assert body["n"] == 1 or body["temperature"] > 0  # the real one refuses it too
        tokens, logps, reason = self.served.sample(
            *(body["prompt"], body["model"], body["seed"] + index),
            *(body["temperature"], body["max_tokens"], body["stop_token_ids"]),
        )
        logprobs = {"token_logprobs": logps, "tokens": [str(token) for token in tokens]}
        right = {"index": index, "text": "", "token_ids": tokens, "logprobs": logprobs, "finish_reason": reason}
        return right | self.spoil


@dataclass
class SamplingParams:
    n: int
    seed: int
    temperature: float
    max_tokens: int
    stop_token_ids: list[int]
    stop: list[str]
    logprobs: int


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass
class _Logprob:
    logprob: float


@dataclass
class _Output:
    index: int
    token_ids: list[int]
    logprobs: list[dict[int, _Logprob]]
    finish_reason: str


@dataclass
class _Result:
    outputs: list[_Output] = field(default_factory=list)


class LLM:
    """The class of the library."""

    def __init__(
        self, model: str, gpu_memory_utilization: float, logprobs_mode: str, enable_sleep_mode: bool, **more: Any
    ) -> None:
        assert logprobs_mode == "processed_logprobs" and enable_sleep_mode
        self.served, self.options, self.awake, self.known = Served(Path(model)), more, {"weights", "kv_cache"}, set[int]()

    def sleep(self, level: int) -> None:
        assert level == 1
        self.awake = set()

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.awake |= set(tags or ("weights", "kv_cache"))

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights" and self.awake == {"weights"}
        self.served.reload(kwargs["weights_path"])

    def generate(
        self, prompts: list[dict[str, Any]], parameters: list[SamplingParams], lora_request: LoRARequest | None, use_tqdm: bool
    ) -> list[_Result]:
        assert self.awake == {"weights", "kv_cache"} and not use_tqdm
        name = None
        if lora_request is not None:
            assert self.options["enable_lora"]
            name = lora_request.lora_name
            if lora_request.lora_int_id not in self.known:
                self.known.add(lora_request.lora_int_id)
                self.served.load_adapter(name, lora_request.lora_path)
        results = []
        for prompt, p in zip(prompts, parameters, strict=True):
            assert p.n == 1 or p.temperature > 0
            outputs = []
            for index in range(p.n):
                tokens, logps, reason = self.served.sample(
                    prompt["prompt_token_ids"], name, p.seed + index, p.temperature, p.max_tokens, p.stop_token_ids
                )
                said = [{token: _Logprob(logp)} for token, logp in zip(tokens, logps, strict=True)]
                outputs.append(_Output(index, tokens, said, reason))
            results.append(_Result(outputs))
        return results


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `import vllm` find the stand-in."""
    module, lora, request = (types.ModuleType(name) for name in ("vllm", "vllm.lora", "vllm.lora.request"))
    module.LLM, module.SamplingParams, request.LoRARequest = LLM, SamplingParams, LoRARequest  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace(name="vllm")  # type: ignore[assignment]
    for one in (module, lora, request):
        monkeypatch.setitem(sys.modules, one.__name__, one)
