"""The policy: a transformers model, with a peft adapter or without, its reference, and what the steps ask of them."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grpo_exp import bits, frozen, sharded
from grpo_exp import model as model_source
from grpo_exp.batch import Example, Outputs, Prompts, TokenBatch
from grpo_exp.critic import Critic, CriticOptions
from grpo_exp.errors import DataError, ModelError
from grpo_exp.frozen import Waiting
from grpo_exp.head import Head
from grpo_exp.model import ModelOptions
from grpo_exp.stream import Stream, positions_of
from grpo_exp.texts import Texts
from grpo_exp.trunk import KNOWN, Trunk, fits


class Policy(Texts):
    """A causal language model that samples are taken from and that learns.

    The prompt of a group is computed once for all of its rows, in training as in sampling, and gradients flow through it.
    Decoders like Llama are computed as a stream of tokens (`trunk`), others by transformers' modules, whose keys and values are
    shared; `share_prompt=False` computes every row whole by them, the plain twin for tests and for gradient checkpointing,
    which cannot keep keys and values.

    Attributes:
        streams: whether the model is computed as a stream of tokens.
        shared: whether each rank has a part of the weights; all must then come to the same passes.
        reference_place: where a copy for the reference is kept, and how: same, cpu, 8bit, as `hardware.reference` says.
    """

    def __init__(self, options: ModelOptions, model: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(options, model, tokenizer)
        self.device, self.dtype = device, dtype
        self.share_prompt = not options.gradient_checkpointing
        self.critic: Critic | None = None
        self.reference_place = "same"
        self.shared = False
        self._collected: dict[str, Tensor] = {}
        self._frozen: Any = None
        self._waiting: Waiting | None = None
        self._moving = False
        self.model = adapted(model, options, dtype, device).to(device)
        if options.gradient_checkpointing:
            # renamed in transformers 5.24, the last for Python 3.10 is 5.20
            (getattr(self.model, "activation_checkpointing_enable", None) or self.model.gradient_checkpointing_enable)()
        self.model.eval()
        self._base = self.model.get_base_model() if options.adapter == "lora" else self.model
        # transformers renamed the argument in 5.24; Python 3.10 has 5.20 as its last
        named = inspect.signature(self._base.get_decoder().forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"
        self.streams = False
        self._check_head()
        self.streams = self._can_stream()

    @classmethod
    def load(cls, options: ModelOptions, device: torch.device, dtype: torch.dtype, seed: int) -> Policy:
        """Load model, tokenizer and adapter.

        Raises:
            ModelError: something cannot be loaded or does not fit together.
            ConfigError: a package is missing.
        """
        if options.quantize == "4bit":
            bits.check(["model.quantize=4bit"])
        model, tokenizer = model_source.load(options, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # the adapter's initial weights
            return cls(options, model, tokenizer, device, dtype)

    def prompts(self, examples: list[Example]) -> Prompts:
        """Render and tokenise: left-padded, on the policy's device."""
        rows = [self.prompt_ids(e) for e in examples]
        ids, texts = [row for row, _ in rows], [text for _, text in rows]
        if empty := [e.id for e, row in zip(examples, ids, strict=True) if not row]:
            raise DataError(f"the prompt of item {empty[0]} has no tokens, so there is nothing to continue from")
        width = max(len(row) for row in ids)
        tokens = torch.tensor([[self.pad_id] * (width - len(row)) + row for row in ids])  # [B, P]
        mask = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in ids])
        return Prompts(tokens.to(self.device), mask.to(self.device), texts, examples)

    # ---- the model

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Matrix products in bfloat16 where the policy's dtype says so."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def decoder(
        self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Any = None, use_cache: bool = True, trunk: Any = None
    ) -> tuple[Tensor, Any]:
        """Last hidden states `[rows, t, H]` and the key/value cache, for `tokens [rows, t]` after what the cache holds.

        `trunk` computes them: the critic's, or by default the policy's own.
        """
        held = {self._cache_name: cache}
        out = (trunk or self._base.get_decoder())(
            input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=use_cache, **held
        )
        return out.last_hidden_state, getattr(out, self._cache_name)

    @property
    def shape(self) -> Any:
        """The language model's configuration: sizes of layers and vocabulary, also where it is part of a larger model."""
        return self._base.config.get_text_config()

    def head(self, hidden: Tensor) -> Tensor:
        """Logits in float32: `[n, H] -> [n, V]`."""
        return Head(self._base, self.streams).logits(hidden)

    def forward(self, batch: TokenBatch, temperature: float, train: bool = False, entropy_gradient: bool = False) -> Outputs:
        """What the policy says of the batch's tokens under the distribution that is sampled from at `temperature`.

        Only completion positions meet the language-model head, in chunks whose logits are recomputed in the backward pass, so
        that no `[N, T, V]` tensor ever exists. `train` turns dropout and gradient checkpointing on; entropies have no gradient
        unless `entropy_gradient` asks for it. There are values where a critic is attached.
        """
        self._train_mode(train)
        try:
            with self.autocast():
                hidden, logp, entropy = sharded.within(self._base, self._said, batch, temperature, entropy_gradient)
                values = self._values(batch, hidden)
        finally:
            self._train_mode(False)
        empty = torch.zeros(batch.tokens.shape, device=self.device)
        logp, entropy = empty.masked_scatter(batch.mask, logp), empty.masked_scatter(batch.mask, entropy)  # [N, T]
        return Outputs(logp, entropy, None if values is None else empty.masked_scatter(batch.mask, values))

    def _said(self, batch: TokenBatch, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states `[n, H]` in which the tokens of the mask are chosen, their log-probs and entropies `[n]`."""
        hidden = self._hidden(batch)
        support = None if batch.support is None else batch.support[batch.mask]  # [n, V / 8]
        head = Head(self._base, self.streams)
        return hidden, *head.logp(hidden, batch.tokens[batch.mask], temperature, support, entropy_gradient)

    def _train_mode(self, train: bool) -> None:
        self.model.train(train)
        if self.critic is not None:
            self.critic.train(train)

    def _values(self, batch: TokenBatch, hidden: Tensor) -> Tensor | None:
        """The critic's values of the states that the policy's `hidden [n, H]` stand for: `[n]`; None without a critic."""
        if self.critic is None:
            return None
        own, there = self.critic.trunk, self.device if self.shared else self.critic.head.weight.device
        if own is None:
            values: Tensor = self.critic(hidden)
            return values
        critic, elsewhere = self.critic, batch.to(there)
        with torch.autocast(there.type, dtype=torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            values = sharded.within(critic, lambda: critic.forward(self._hidden(elsewhere, own)).clone())  # no view, says torch
        return values.to(self.device)

    @property
    def language_model(self) -> Any:
        """The transformers model with its head, adapters within it."""
        return self._base

    @property
    def body(self) -> Any:
        """The decoder that computes hidden states: the policy's, or within `reference()` the reference's."""
        return self._base.get_decoder()

    def _hidden(self, batch: TokenBatch, trunk: Any = None) -> Tensor:
        """Hidden states in which each token of the mask is chosen, `[n, H]`."""
        if not self.streams:
            return (self._hidden_shared if self.share_prompt else self._hidden_whole)(batch, trunk)[batch.mask]
        stream = Stream(batch)
        compute = Trunk(trunk or self.body, self.dtype, self.options.gradient_checkpointing)
        return compute(stream.tokens, stream.positions, stream.attend)[stream.predicts]

    def _hidden_shared(self, batch: TokenBatch, trunk: Any) -> Tensor:
        """Hidden states that predict each completion token, `[N, T, H]`, each prompt computed once."""
        mask = batch.prompt_mask  # [B, P]
        prompt, cache = self.decoder(batch.prompt_tokens, mask.long(), positions_of(mask), trunk=trunk)
        first = prompt[batch.group, -1:]  # [N, 1, H]
        if batch.tokens.shape[1] == 1:
            return first
        cache.batch_select_indices(batch.group)
        whole = torch.cat([mask[batch.group], batch.mask[:, :-1]], 1)  # [N, P + T - 1]
        steps = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
        positions = mask.sum(-1)[batch.group][:, None] + steps  # [N, T - 1]
        rest, _ = self.decoder(batch.tokens[:, :-1], whole.long(), positions, cache, trunk=trunk)
        return torch.cat([first, rest], 1)

    def _hidden_whole(self, batch: TokenBatch, trunk: Any) -> Tensor:
        """The same, with every row's prompt computed anew."""
        tokens = torch.cat([batch.prompt_tokens[batch.group], batch.tokens], 1)  # [N, S]
        mask = torch.cat([batch.prompt_mask[batch.group], batch.mask], 1)
        hidden, _ = self.decoder(tokens, mask.long(), positions_of(mask), use_cache=False, trunk=trunk)
        width = batch.prompt_tokens.shape[1]
        return hidden[:, width - 1 : -1]

    def _check_head(self) -> None:
        """Hidden states and head taken apart must give what the whole model gives; some architectures do more in between."""
        tokens = torch.tensor([[self.eos_ids[0], self.pad_id]], device=self.device)
        mask = torch.ones_like(tokens)
        with torch.no_grad(), self.autocast():
            hidden, _ = self.decoder(tokens, mask, positions_of(mask.bool()), use_cache=False)
            whole = self._base(input_ids=tokens, attention_mask=mask).logits[0].float()
            apart = self.head(hidden[0])
        if not torch.allclose(whole, apart, rtol=1e-2, atol=1e-2):
            raise ModelError(
                f"model {self.options.name} ({type(self._base).__name__}) computes its logits in a way that is not known here: "
                "they differ from head(hidden) by up to {:.3g}. Use another architecture".format(
                    (whole - apart).abs().max().item()
                )
            )

    def _can_stream(self) -> bool:
        """Whether the stream is wanted and gives what the modules give."""
        wanted = self.options.forward
        if wanted == "modules" or (wanted == "auto" and self.device.type != "cpu"):
            return False
        tokens = torch.tensor([[self.eos_ids[0], self.pad_id, self.eos_ids[0]]], device=self.device)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        same = fits(self.body)
        if same:
            batch = TokenBatch(tokens, mask, torch.zeros(1, dtype=torch.long, device=self.device), tokens, mask, loss_mask=mask)
            with torch.no_grad(), self.autocast():
                plain = self._hidden(batch).float()
                self.streams = True
                same = bool((self._hidden(batch).float() - plain).norm() < 0.1 * plain.norm())  # far more than rounding
        if not same and wanted == "stream":
            raise ModelError(
                f"model.forward=stream, but {type(self._base).__name__} is not of the kind that is computed so "
                f"({', '.join(KNOWN)} with full attention and plain LoRA); use model.forward=auto"
            )
        return same

    # ---- the reference

    def freeze_reference(self, moves: bool = False) -> None:
        """Remember the policy as it is now, adapter included, as the reference. Costs memory where all weights are trained.

        `moves`: for `update_reference`. An adapter then gets a second one beside it, and the reference becomes part of `state`.
        """
        if self.shared:  # which began with that
            return
        self._moving = moves
        if self.options.adapter == "none":
            self._frozen = self._frozen_copy()
            if self.reference_place == "cpu":
                self._waiting = Waiting(self._frozen, self.device)
        elif moves and not self.options.start_adapter:
            with torch.random.fork_rng(devices=[]):  # peft draws weights, which are then overwritten
                self.model.add_adapter("reference", self.model.peft_config["default"])
            learnt = dict(self.model.named_parameters())
            for name, parameter in self._reference_parameters().items():
                parameter.data = learnt[name].detach().clone()
            self._activate_trained()

    def _frozen_copy(self) -> Any:
        """The model as it is now, in the memory that `reference_place` grants it; one that moves is kept exact."""
        if self.reference_place == "8bit":
            return frozen.int8(self._base)
        if self._moving:
            return copy.deepcopy(self._base).requires_grad_(False)
        return frozen.copied(self._base, self.dtype)

    def update_reference(self, alpha: float) -> None:
        """ref <- alpha pi + (1 - alpha) ref, weight by weight; 1 makes it an exact copy of the policy (arXiv 2404.09656)."""
        if not self._moving:
            raise RuntimeError("freeze_reference(moves=True) was not called")
        learnt = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, parameter in self._reference_parameters().items():
                parameter.lerp_(learnt[name].to(parameter.device), alpha)

    def _reference_parameters(self) -> dict[str, nn.Parameter]:
        """The weights that are the reference's own, under the names of the policy's."""
        if self._frozen is not None:
            return dict(self._frozen.named_parameters())
        named = self.model.named_parameters()
        return {name.replace(".reference.", ".default."): p for name, p in named if ".reference." in name}

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """Within, the policy computes as the reference does: the base with the adapter off, or with the one it started from."""
        trained, critic, self.critic = self._base, self.critic, None  # which has nothing to say of a reference
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "critic", critic)
            if self.options.adapter == "lora" and (self.options.start_adapter or self._moving):
                self.model.set_adapter("reference")
                stack.callback(self._activate_trained)
            elif self.options.adapter == "lora":
                stack.enter_context(self.model.disable_adapter())
            elif self._frozen is not None:
                self._base = self._frozen
                if self._waiting is not None:
                    stack.enter_context(self._waiting.here())
            else:
                raise RuntimeError("freeze_reference() was not called")
            try:
                yield
            finally:
                self._base = trained

    def _activate_trained(self) -> None:
        self.model.set_adapter("default")
        for name, parameter in self.model.named_parameters():
            if ".reference." in name:
                parameter.requires_grad_(False)

    # ---- the critic

    def attach_critic(self, options: CriticOptions, place: str = "same") -> None:
        """Give the policy a critic, whose trunk is the policy as it is now; `place`: as `hardware.critic` says."""
        device = self.device if place == "same" else torch.device(place)
        self.critic = Critic(options, self._base.get_decoder(), self.shape.hidden_size, device)

    # ---- several ranks, a part of the weights on each

    def share_out(self, device: torch.device, offload: bool) -> None:
        """Leave this rank a part of all weights, on `device`, those of reference and critic too; all ranks do so.

        Reference and critic, where there are any, must be there by now. `offload`: as in `sharded.share_out`.
        """
        if self.critic is not None and self.critic.trunk is not None:
            frozen = {id(p) for p in self._base.parameters()}
            for module in self.critic.trunk.modules():  # a unit's weights are its own
                for name, p in module.named_parameters(recurse=False):
                    if id(p) in frozen:
                        setattr(module, name, nn.Parameter(p.detach().clone(), requires_grad=False))
            self._share_out(self.critic, self.critic.trunk, device, offload)
        elif self.critic is not None:
            self.critic.to(device)
        for model in (self._base, self._frozen):
            if model is not None:
                self._share_out(model, model.get_decoder(), device, offload)
        self.device, self.shared = device, True
        if self.options.forward == "auto" and device.type != "cpu":  # where it was loaded
            self.streams = False

    def _share_out(self, model: nn.Module, decoder: Any, device: torch.device, offload: bool) -> None:
        sharded.share_out(model, getattr(decoder, "layers", ()), device, self.dtype, offload)

    def collect(self, keep: bool) -> None:
        """Where weights are shared out, put together those of the policy that learn, for `sent` and `export_weights` of the
        rank that is to `keep` them; all ranks must come to it."""
        if self.shared:
            self._collected = {}  # before there are others
            named = ((n, sharded.gathered(p.detach())) for n, p in self.model.named_parameters() if p.requires_grad)
            self._collected = {name: x for name, x in named if keep}

    def sent(self) -> dict[str, Tensor]:
        """The policy's weights that learn, by name, as another program is to have them."""
        if self.shared:
            return self._collected
        return {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

    def whole(self) -> contextlib.AbstractContextManager[None]:
        """Within, weights that are shared out are whole on every rank, as sampling needs them; nothing may be learned."""
        return sharded.whole([self._base])

    # ---- parameters and files

    def trainable(self) -> list[nn.Parameter]:
        """The policy's parameters that learn; the critic has its own."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def sizes(self) -> tuple[int, int]:
        """Parameters in all (the model's, without a second adapter) and trainable ones."""
        total = sum(p.numel() for name, p in self.model.named_parameters() if ".reference." not in name)
        return total, sum(p.numel() for p in self.trainable())

    def held(self) -> dict[str, Tensor]:
        """The weights that learn, by name, the critic's under `critic.`, those of a moving reference under `reference.`; where
        they are shared out, this rank's part of each, which says the size of the whole."""
        named = [*self.model.named_parameters(), *(self.critic.named_parameters("critic") if self.critic is not None else ())]
        own = {name: p.detach() for name, p in named if p.requires_grad}
        moved = self._reference_parameters() if self._moving else {}
        return own | {f"reference.{name}": p.detach() for name, p in moved.items()}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The same whole, one after the other; where they are shared out, all ranks must go through them."""
        return ((name, sharded.gathered(x)) for name, x in self.held().items())

    def state(self) -> dict[str, Tensor]:
        """All of these at once."""
        return dict(self.weights())

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` returned; a saved critic or reference that this policy lacks, as in evaluation, is ignored."""
        own = self.held()
        if self.critic is None:
            state = {name: value for name, value in state.items() if not name.startswith("critic.")}
        if not self._moving:
            state = {name: value for name, value in state.items() if not name.startswith("reference.")}
        if own.keys() != state.keys():
            raise ModelError(f"the saved weights do not fit this model: {sorted(own.keys() ^ state.keys())[:3]} differ")
        with torch.no_grad():
            for name, parameter in own.items():
                sharded.put(parameter, state[name])

    def export(self, folder: Path) -> None:
        """Write what transformers' `from_pretrained`, or peft's for an adapter, loads without any code of ours."""
        self.export_weights(folder)
        self.tokenizer.save_pretrained(folder)

    def export_weights(self, folder: Path) -> None:
        """The same without the tokenizer. Of weights that are shared out, those that `collect` put together."""
        extra: dict[str, Any] = {"selected_adapters": ["default"]} if self.options.adapter == "lora" else {}
        if self.shared:
            extra["state_dict"] = self._collected
        self.model.save_pretrained(folder, **extra)

    def export_base(self, folder: Path) -> None:
        """Write the model without its adapter, as transformers loads it, and the tokenizer."""
        plain = {name.replace(".base_layer.", "."): x for name, x in self._base.state_dict().items() if ".lora_" not in name}
        self._base.save_pretrained(folder, state_dict=plain)
        self.tokenizer.save_pretrained(folder)


def adapted(model: Any, options: ModelOptions, dtype: torch.dtype, device: torch.device) -> Any:
    """The model as it is trained: whole, or frozen with an adapter on it."""
    if options.adapter == "none":
        return model
    from peft import LoraConfig, PeftModel, get_peft_model

    model = model.to(dtype)  # frozen, so nothing is lost by keeping it in the compute dtype
    if options.quantize == "4bit":
        bits.to_4bit(model, dtype, device)
    if options.start_adapter:
        try:
            made = PeftModel.from_pretrained(model, options.start_adapter, is_trainable=True)
            made.load_adapter(options.start_adapter, adapter_name="reference", is_trainable=False)
        except (ValueError, RuntimeError, OSError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            sizes = next((line.strip() for line in lines if "size mismatch" in line), lines[0])
            raise ModelError(
                f"model.start_adapter={options.start_adapter!r} does not fit the model: {sizes[:300]}. It belongs to another "
                "model, or to one with another vocabulary"
            ) from error
    else:
        targets: Any = options.lora_targets
        settings = LoraConfig(
            r=options.lora_rank,
            lora_alpha=options.lora_alpha,  # type: ignore[arg-type]
            lora_dropout=options.lora_dropout,
            target_modules="all-linear" if targets == ["all-linear"] else targets,
            task_type="CAUSAL_LM",
        )
        try:
            made = get_peft_model(model, settings, low_cpu_mem_usage=device.type == "meta")  # on paper no weights are drawn
        except ValueError as error:
            raise ModelError(f"model.lora_targets={targets}: {str(error).splitlines()[0][:300]}") from error
    for name, parameter in made.named_parameters():
        if parameter.requires_grad or ".reference." in name:
            parameter.data = parameter.data.float()
    return made
