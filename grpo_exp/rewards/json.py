"""JSON that obeys a schema, and, where the data says which, states the wanted value."""

from __future__ import annotations

import functools
import itertools
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_exp.answers import blocks, structures
from grpo_exp.batch import Example
from grpo_exp.errors import ConfigError, DataError, InputError, RewardError
from grpo_exp.options import option
from grpo_exp.paths import expanded
from grpo_exp.patterns import Pattern
from grpo_exp.verifier import Verdict, Verifier, wanted

SECONDS = 1.0  # for one check
MOST_ERRORS = 100
_BEGINS = re.compile(r"[\[{]")
_clock = threading.local()  # until: when the check that runs in this thread is to end


@dataclass
class JsonReward(Verifier):
    """`right` where the JSON obeys the schema and is the wanted value, `near` where it is JSON but one of the two fails.

    The JSON is what stands in the last <answer>...</answer>, else in the last fenced block (```json or ```), else all of the
    completion. It is read strictly: see `answers.structures`. The schema is of any draft that jsonschema knows; references to
    other files are not followed. Nested alternatives and regular expressions can take for ever on a text made for it: a check
    of more than a second fails on that sample, which `reward.on_error` decides on.
    """

    near: float = option("value of JSON that does not obey the schema, or does not state the wanted value")
    schema: str | None = option("file with the JSON schema, for all items; null: each item has its own")
    schema_field: str | None = option(
        "with schema=null: the field of the data with the schema, as an object or as text; null: none"
    )
    field: str | None = option(
        "field of the data with the wanted value, as an object or as text; null: any that obeys the schema"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = sum(source is not None for source in (self.schema, self.schema_field))
        if given == 2 or (given == 0 and self.field is None):
            raise ConfigError(
                f"{self.key('schema')}={self.schema} {self.key('schema_field')}={self.schema_field}: name a file or a field "
                f"with the schema, not both; or set {self.key('field')} to the field with the wanted value"
            )
        self._schema = None if self.schema is None else validator(_file(self.schema, self.key("schema")), self.key("schema"))
        self._of_text = functools.lru_cache(maxsize=1024)(self._made)

    def check_data(self, examples: Sequence[Example]) -> None:
        """The fields are there, and hold schemas and JSON."""
        for name, what in (("schema_field", "the JSON schema"), ("field", "the wanted value")):
            if getattr(self, name) is not None:
                self.need(name, what, examples)
        for example in examples:
            self._wants(example)

    def verdict(self, text: str, example: Example, finished: bool) -> Verdict:
        """Whether there is JSON, obeys the schema and is the wanted value."""
        schema, value = self._wants(example)
        if schema is None and value is None:
            return Verdict(None, "the item has neither schema nor wanted value")
        found = blocks.find(text, ("json",), _BEGINS)
        if not found:
            return Verdict("missing", "no JSON in a tag, a fenced block or as the whole")
        try:
            stated = structures.parse(found)
        except structures.Malformed as error:
            return Verdict("wrong", str(error), found)
        if schema is not None and (problem := violation(schema, stated)):
            return Verdict("near", f"against the schema: {problem}", found)
        if value is not None and not structures.same(stated, value[0]):
            return Verdict("near", f"not the wanted value {value[0]!r:.100}", found)
        return Verdict("right", "as wanted" if value is not None else "obeys the schema", found)

    def _wants(self, example: Example) -> tuple[Any, tuple[Any] | None]:
        """The schema's validator and the wanted value in a tuple of its own, None for what there is not."""
        own = None if self.schema_field is None else wanted(example, self.schema_field)
        value = None if self.field is None else wanted(example, self.field)
        try:
            schema = self._schema if own is None else self._of_text(own) if isinstance(own, str) else self._made(own)
            return schema, None if value is None else (structures.parse(value) if isinstance(value, str) else value,)
        except (ConfigError, structures.Malformed) as error:
            raise DataError(f"reward part '{self.kind}', item {example.id}: {error}") from error

    def _made(self, schema: Any) -> Any:
        return validator(structures.parse(schema) if isinstance(schema, str) else schema, self.key("schema_field"))


def _file(name: str, key: str) -> Any:
    try:
        return structures.parse(expanded(name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{key}={name!r}: there is no such file; a relative path starts at {Path.cwd()}") from error
    except (OSError, UnicodeDecodeError, structures.Malformed) as error:
        raise ConfigError(f"{key}={name!r} cannot be read: {error}") from error


def validator(schema: Any, key: str) -> Any:
    """What checks values against a schema.

    Raises:
        InputError: jsonschema is not installed.
        ConfigError: it is no schema.
    """
    try:
        import jsonschema
        import referencing
    except ImportError as error:
        raise InputError("reward=json needs jsonschema: pip install 'grpo-exp[json]'") from error
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        cls.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ConfigError(f"{key}: no JSON schema: {error.message:.200}") from error
    own = {"pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique_items}
    rules = {name: _timed(own.get(name, rule)) for name, rule in cls.VALIDATORS.items()}
    return jsonschema.validators.extend(cls, rules)(schema, registry=referencing.Registry())  # an empty one: nothing is fetched


def violation(schema: Any, value: Any) -> str:
    """What is wrong with a value, "" for nothing.

    Raises:
        RewardError: it took longer than SECONDS, or a regular expression of the schema did.
        DataError: the schema refers to something that it does not hold.
    """
    import jsonschema
    import referencing.exceptions

    _clock.until = time.monotonic() + SECONDS
    try:
        error = jsonschema.exceptions.best_match(itertools.islice(schema.iter_errors(value), MOST_ERRORS))
    except (RecursionError, ArithmeticError) as bounds:
        return f"cannot be checked: {bounds}"
    except referencing.exceptions.Unresolvable as unresolved:
        raise DataError(f"the JSON schema refers to {unresolved.ref!r}, which it does not hold") from unresolved
    return "" if error is None else f"{error.json_path}: {error.message}"[:200]


def _timed(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A keyword of the schema that looks at the clock before it is applied."""

    def applied(checker: Any, wants: Any, instance: Any, schema: Any) -> Any:
        if time.monotonic() > _clock.until:
            raise RewardError(f"the check against the JSON schema took longer than {SECONDS:g} s")
        return rule(checker, wants, instance, schema)

    return applied


@functools.lru_cache(maxsize=1024)
def _expression(text: str) -> Pattern:
    return Pattern(text, "pattern in the JSON schema")


def _pattern(checker: Any, pattern: str, instance: Any, schema: Any) -> Any:
    import jsonschema

    if isinstance(instance, str) and _expression(pattern).search(instance) is None:
        yield jsonschema.ValidationError(f"{instance!r:.80} does not match {pattern!r:.80}")


def _unique_items(checker: Any, wants: bool, instance: Any, schema: Any) -> Any:
    """In time linear in the text: the library's own compares each pair where items cannot be sorted."""
    import jsonschema

    if wants and isinstance(instance, list) and len(set(map(structures.canonical, instance))) < len(instance):
        yield jsonschema.ValidationError("two items are the same")


def _pattern_properties(checker: Any, properties: dict[str, Any], instance: Any, schema: Any) -> Any:
    if isinstance(instance, dict):
        for pattern, inner in properties.items():
            for name, value in instance.items():
                if _expression(pattern).search(name) is not None:
                    yield from checker.descend(value, inner, path=name, schema_path=pattern)
