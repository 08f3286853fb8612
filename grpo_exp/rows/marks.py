"""What an item is known by, whatever its place in a file and its id."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from grpo_exp.batch import Example


def item_key(example: Example) -> str:
    """16 hexadecimal digits that are equal where prompt, answer, target and pair are; id, category and columns do not count."""
    said = _text(example.prompt) + _text((example.answer, example.target, example.chosen, example.rejected))
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
