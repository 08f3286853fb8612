"""The run card in words: what trains on what, towards what, with which formula and how many samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_exp.track.wording import clean, is_number, number, part, short


def card_lines(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The run card as (label, text): what trains on what, towards what, with which formula and how many samples."""
    lines = [
        ("run", _run(card)),
        ("model", _model(part(card, "model"))),
        ("data", _data(part(card, "data"))),
        *(("", clean(note)) for note in part(card, "data").get("notes") or []),
        ("reward", _reward(part(card, "reward"))),
        *_formula(card),
        ("batch", _batch(part(card, "batch"))),
        ("steps", _steps(card)),
        ("options", _options(card)),
        ("machine", _machine(part(card, "hardware"))),
        ("seeds", ", ".join(f"{clean(k)} {short(v)}" for k, v in part(card, "seeds").items())),
        ("code", _code(card)),
        ("goal", _goal(part(card, "goal"))),
        ("W&B", _wandb(part(card, "wandb"))),
        ("folder", clean(card.get("folder", ""))),
    ]
    shown: list[tuple[str, str]] = []
    for label, text in lines:
        if text and (label or shown):
            shown.append((label, text))
    return shown


def wandb_line(card: Mapping[str, Any]) -> str:
    """Where the W&B run is, or how to send it there."""
    wandb = part(card, "wandb")
    return clean(wandb.get("sync") or wandb.get("url") or "")


def _wandb(wandb: Mapping[str, Any]) -> str:
    if not wandb:
        return ""
    return clean(wandb.get("url") or f"recorded {wandb.get('mode', 'offline')}; how to send it is said at the end")


def _run(card: Mapping[str, Any]) -> str:
    parts = [clean(card[key]) for key in ("name", "algo") if card.get(key)]
    if card.get("resumed_from") is not None:
        parts.append(f"going on from step {short(card['resumed_from'])}")
    if number := part(card, "branch").get("number"):
        parts.append(f"branch {short(number)}")
    return ", ".join(parts)


def _model(model: Mapping[str, Any]) -> str:
    if not model:
        return ""
    text = clean(model.get("name", "unnamed"))
    if "parameters" in model:
        text += f", {number(model['parameters'])} parameters"
    if "trainable" in model:
        text += ", all trained" if model["trainable"] == model.get("parameters") else f", {number(model['trainable'])} trained"
    text += f", adapter {clean(model['adapter'])}" if model.get("adapter") else ""
    return text + (f"; critic, {number(model['critic'])} trained" if model.get("critic") else "")


def _data(data: Mapping[str, Any]) -> str:
    if not data:
        return ""
    counts = [
        f"{number(data[key])} {words}" for key, words in (("train", "to train on"), ("heldout", "held out")) if key in data
    ]
    parts = [clean(data.get("name", "unnamed")), *counts]
    parts += [f"sha256 {clean(data['sha256'])[:12]}"] if data.get("sha256") else []
    return ", ".join(parts) + (f"; {clean(data['source'])}" if data.get("source") else "")


def _reward(reward: Mapping[str, Any]) -> str:
    parts = part(reward, "parts")
    terms = []
    for name, about in parts.items():
        said = [about["role"]] if about.get("role") not in (None, "shaping") else []
        said += [f"{about['style']} style"] if about.get("style") else []
        terms.append(f"{short(about.get('weight', 1))} × {clean(name)}" + (f" ({clean(', '.join(said))})" if said else ""))
    name = clean(reward.get("name", ""))
    return ("" if name in parts or not name else f"{name}: ") + " + ".join(terms) if terms else name


def _formula(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [clean(line) for line in str(card.get("formula") or "").splitlines() if line.strip()]
    return [("loss" if i == 0 else "", line) for i, line in enumerate(lines)]


def _batch(batch: Mapping[str, Any]) -> str:
    prompts, G, rows = (batch.get(key) for key in ("prompts_per_step", "G", "rows"))
    if prompts and G:
        text = f"{number(prompts)} prompts × {number(G)} samples = {number(rows or prompts * G)} rows a step"
    elif rows:
        text = f"{number(rows)} rows a step"
    else:
        return ""
    if (updates := batch.get("updates_per_rollout") or 1) > 1:
        text += f", {number(updates)} updates of {number(batch.get('rows_per_update'))} rows each"
    if batch.get("tokens_max"):
        text += f", at most {number(batch['tokens_max'])} tokens a step"
    return text


def _steps(card: Mapping[str, Any]) -> str:
    steps, batch = card.get("steps"), part(card, "batch")
    if not steps:
        return ""
    prompts, G = batch.get("prompts_per_step"), batch.get("G")
    if not (prompts and G):
        return number(steps)
    least = "at least " if batch.get("rounds", 1) > 1 else ""
    return f"{number(steps)}: {least}{number(steps * prompts)} prompts, {number(steps * prompts * G)} samples in all"


def _options(card: Mapping[str, Any]) -> str:
    names = ("beta", "temperature", "lr", "max_new_tokens")
    return ", ".join(f"{name} {short(card[name])}" for name in names if card.get(name) is not None)


def _machine(hardware: Mapping[str, Any]) -> str:
    parts = [clean(hardware[key]) for key in ("device", "dtype") if hardware.get(key)]
    parts += [f"{short(hardware['threads'])} threads"] if hardware.get("threads") else []
    parts += ["sampling one step ahead in another process"] if hardware.get("overlap") else []
    parts += [clean(hardware["cpu"])] if hardware.get("cpu") else []
    parts += [f"{short(round(float(hardware['memory_gib']), 1))} GiB"] if is_number(hardware.get("memory_gib")) else []
    return ", ".join(parts)


def _code(card: Mapping[str, Any]) -> str:
    git = part(card, "git")
    commit = (
        f"git {clean(git['commit'])[:10]}" + (" with uncommitted changes" if git.get("dirty") else "")
        if git.get("commit")
        else ""
    )
    versions = ", ".join(f"{clean(k)} {clean(v)}" for k, v in part(card, "versions").items())
    return "; ".join(text for text in (commit, versions) if text)


def _goal(objective: Mapping[str, Any]) -> str:
    if not objective.get("metric"):
        return ""
    return f"{clean(objective['metric'])}, {clean(objective.get('direction', ''))}".removesuffix(", ")
