"""json, tool_call and sql on tables of completions, the values expected by hand, and what may not hang them."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from parts import NEAR, item, part, value

from grpo_exp.errors import ConfigError, DataError, RewardError

R, N, W, M = 1.0, 0.3, 0.0, -1.0

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def schema(tmp_path: Path) -> str:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA), encoding="utf-8")
    return str(file)


JSON = [
    ('{"name": "Ada", "age": 36}', R),
    ('```json\n{"name": "Ada", "age": 36}\n```', R),
    ('Here it is:\n```\n{"name": "Ada", "age": 36}\n```\nDone.', R),
    ('<answer>{"name": "Ada", "age": 36}</answer>', R),
    ('<answer>\n```json\n{"name": "Ada", "age": 36}\n```\n</answer>', R),
    ('<think>{"name": "Bob"}</think>{"name": "Ada", "age": 36}', R),
    ('{"name": "Ada", "age": 36.0}', R),  # a whole number to JSON Schema
    ('```json\n{"name": 1}\n```\n```json\n{"name": "Ada", "age": 36}\n```', R),
    ('```json\n{"name": "Ada", "age": 36}\n```\n```json\n{"name": 1}\n```', N),
    ('{"name": "Ada"}', N),
    ('{"name": "Ada", "age": -1}', N),
    ('{"name": "ada", "age": 36}', N),
    ('{"name": "Ada", "age": "36"}', N),
    ('{"name": "Ada", "age": true}', N),
    ('{"name": "Ada", "age": 36, "more": 1}', N),
    ("[]", N),
    ('{"name": "Ada", "age": 36', W),
    ("{'name': 'Ada', 'age': 36}", W),
    ('{"name": "Ada", "age": 36,}', W),
    ('{"name": "Ada", "age": NaN}', W),
    ('{"name": "Ada", "age": 1e999}', W),
    ('{"name": "Bob", "name": "Ada", "age": 36}', W),
    ('{"name": "Ada", "age": 36} and more', W),
    ("<answer>Ada, 36</answer>", W),
    ("Ada is 36.", M),
    ('Here it is: {"name": "Ada", "age": 36}', M),  # prose around it is not the form that was asked for
    ('```json\n{"name": "Ada", "age": 36}', M),
    ('```python\n{"name": "Ada", "age": 36}\n```', M),
    ("<answer>", M),
]


@pytest.mark.parametrize(("text", "expected"), JSON)
def test_json(text: str, expected: float, schema: str) -> None:
    assert value(part("json", schema=schema, **NEAR), text, item()) == expected


@pytest.mark.parametrize("wanted", [{"name": "Ada", "age": 36}, '{"age": 36.0, "name": "Ada"}'])
def test_json_may_have_to_state_a_value(wanted: Any, schema: str) -> None:
    reward = part("json", schema=schema, field="wanted", **NEAR)
    assert value(reward, '{"age": 36, "name": "Ada"}', item(wanted=wanted)) == R
    assert value(reward, '{"age": 37, "name": "Ada"}', item(wanted=wanted)) == N
    alone = part("json", field="wanted", **NEAR)
    assert value(alone, '{"age": 36, "name": "Ada"}', item(wanted=wanted)) == R
    assert value(alone, "[1]", item(wanted="[true]")) == N
    assert value(alone, "[1]", item()) is None


def test_the_schema_may_stand_in_the_data() -> None:
    reward = part("json", schema_field="schema", **NEAR)
    for own in ({"type": "array"}, '{"type": "array"}'):
        assert value(reward, "[1]", item(schema=own)) == R
        assert value(reward, "{}", item(schema=own)) == N
    assert value(reward, "{}", item()) is None
    with pytest.raises(DataError, match=r"item 7: .*no JSON schema: 'arrayy'"):
        reward.check_data([item(schema={"type": "arrayy"})])
    with pytest.raises(DataError, match=r"item 7: no JSON"):
        reward.check_data([item(schema="{")])
    with pytest.raises(DataError, match=r"schema_field='schema'.*no item has it"):
        reward.check_data([item()])


BRANCHES = [{"type": "object", "properties": {"k": {"const": i}, "l": {"$ref": "#/$defs/t"}}} for i in range(3)]
SLOW = [
    ({"$defs": {"t": {"anyOf": BRANCHES}}, "$ref": "#/$defs/t"}, '{"k":9,"l":' * 60 + '{"k":9}' + "}" * 60),
    ({"properties": {"a": {"pattern": "^(a|aa)+$"}}}, json.dumps({"a": "a" * 5000 + "!"})),
    ({"patternProperties": {"^(a|aa)+$": {}}}, json.dumps({"a" * 5000 + "!": 1})),
]


@pytest.mark.parametrize(("rules", "text"), SLOW, ids=["alternatives", "pattern", "patternProperties"])
def test_a_check_that_takes_for_ever_fails_on_that_sample(rules: Any, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_exp.rewards.json.SECONDS", 0.2)
    monkeypatch.setattr("grpo_exp.patterns.SECONDS", 0.2)
    began = time.perf_counter()
    stopped = value(part("json", schema_field="schema"), text, item(schema=rules))
    assert isinstance(stopped, RewardError) and "took longer than 0.2 s" in str(stopped)
    assert time.perf_counter() - began < 20  # otherwise for ever


def test_what_cannot_be_sorted_is_compared_in_linear_time() -> None:
    items = [i if i % 2 else f"a{i}" for i in range(12_000)]
    reward, example = part("json", schema_field="schema", **NEAR), item(schema={"uniqueItems": True})
    began = time.process_time()
    assert value(reward, json.dumps(items), example) == R
    assert value(reward, json.dumps([*items, 1.0]), example) == N
    assert value(reward, json.dumps([1, True]), example) == R
    assert time.process_time() - began < 2


def test_a_schema_is_not_fetched() -> None:
    with pytest.raises(DataError, match=r"refers to 'http://127\.0\.0\.1:9/schema', which it does not hold"):
        value(part("json", schema_field="s"), "{}", item(s={"$ref": "http://127.0.0.1:9/schema"}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "name a file or a field with the schema"),
        ({"schema": "a.json", "schema_field": "b"}, "not both"),
        ({"schema": "nowhere.json"}, "there is no such file"),
        ({"schema": __file__}, "cannot be read"),
    ],
)
def test_options_of_json_are_checked_together(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=r"reward\.parts\.json\.schema") as error:
        part("json", **options)
    assert words in str(error.value)


# ---- tool_call

ONE = {"name": "weather", "arguments": {"city": "Rome", "days": 2}}
TWO = [ONE, {"name": "time", "arguments": {}}]
_OPENAI = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome", "days": 2}'}}
CALLS = [
    (ONE, f"<tool_call>\n{json.dumps(ONE)}\n</tool_call>", R),
    (ONE, f"I look it up.\n<tool_call>{json.dumps(ONE)}</tool_call>", R),
    (ONE, f"<think>which? <tool_call></think><tool_call>{json.dumps(ONE)}</tool_call>", R),
    (ONE, json.dumps(ONE), R),
    (ONE, f"```json\n{json.dumps(ONE)}\n```", R),
    (ONE, f"<answer>{json.dumps(ONE)}</answer>", R),
    (ONE, f"[TOOL_CALLS] {json.dumps([ONE])}", R),
    (ONE, json.dumps({"name": "weather", "parameters": ONE["arguments"]}), R),
    (ONE, json.dumps({"role": "assistant", "content": None, "tool_calls": [_OPENAI]}), R),
    (ONE, json.dumps([_OPENAI]), R),
    (ONE, json.dumps({"name": "weather", "arguments": {"days": 2.0, "city": "Rome"}}), R),
    (ONE, json.dumps({"name": "weather", "arguments": {"city": "Rome", "days": 3}}), N),
    (ONE, json.dumps({"name": "weather", "arguments": {"city": "rome", "days": 2}}), N),
    (ONE, json.dumps({"name": "weather", "arguments": {"city": "Rome", "days": "2"}}), N),
    (ONE, json.dumps({"name": "weather", "arguments": {"city": "Rome", "days": 2, "x": 1}}), N),
    (ONE, json.dumps({"name": "weather"}), N),
    (ONE, json.dumps({"name": "Weather", "arguments": ONE["arguments"]}), W),
    (ONE, json.dumps(TWO), W),
    (ONE, json.dumps([ONE, ONE]), W),
    (ONE, f"<tool_call>{json.dumps(ONE)}", W),
    (ONE, f"<tool_call>{json.dumps(ONE)[:-1]}</tool_call>", W),
    (ONE, "<tool_call>weather('Rome', 2)</tool_call>", W),
    (ONE, '{"arguments": {"city": "Rome", "days": 2}}', W),
    (ONE, '{"name": "weather", "arguments": [1]}', W),
    (ONE, '{"name": "weather", "arguments": {}, "parameters": {"city": "Rome", "days": 2}}', W),
    (ONE, "It will rain.", M),
    (ONE, "", M),
    (TWO, "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in reversed(TWO)), R),
    (TWO, json.dumps(TWO[1]), W),
    (TWO, json.dumps([TWO[0], TWO[0]]), W),
    (json.dumps(ONE), json.dumps(ONE), R),
    (f"<tool_call>{json.dumps(ONE)}</tool_call>", json.dumps(ONE), R),
    ({"tool_calls": [_OPENAI]}, json.dumps(ONE), R),
    ([], "It will rain.", R),
    ([], json.dumps(ONE), W),
]


@pytest.mark.parametrize(("expected", "text", "worth"), CALLS)
def test_tool_call(expected: Any, text: str, worth: float) -> None:
    reward, example = part("tool_call", field="calls", **NEAR), item(calls=expected)
    reward.check_data([example])
    assert value(reward, text, example) == worth


def test_the_order_of_calls_counts_where_it_is_wanted() -> None:
    reward, swapped = part("tool_call", field="calls", ordered=True, **NEAR), json.dumps(TWO[::-1])
    assert value(reward, json.dumps(TWO), item(calls=TWO)) == R
    assert value(reward, swapped, item(calls=TWO)) == W


def test_an_expected_call_that_is_none_is_refused() -> None:
    with pytest.raises(DataError, match=r"item 7: the expected call .*'weather\(\)'.* is none"):
        part("tool_call").check_data([item("weather()")])


# ---- sql


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("create table item (id int, name text, price real)")
        rows = [(1, "pen", 1.5), (2, "ink", 2.25), (3, "cap", 3.0), (4, "pen", 0.1 + 0.2)]
        connection.executemany("insert into item values (?, ?, ?)", rows)
        connection.commit()
    return file


NAMES = "select name, price from item"
SORTED = "SELECT name, price FROM item ORDER BY price"
SQL = [
    (NAMES, NAMES, R),
    (NAMES, f"```sql\n{NAMES};\n```", R),
    (NAMES, f"We join.\n<answer>{NAMES}</answer>", R),
    (NAMES, "select name as n, price as p from item order by id desc", R),
    (NAMES, "select price, name from item", N),
    (NAMES, "select name from item", W),
    (NAMES, "select distinct name, 1 from item", W),
    (NAMES, "select name, price from item union all select name, price from item", W),
    (SORTED, "select name, price from item order by price", R),
    (SORTED, "select name, price from item order by price desc", N),
    (SORTED, "select name, price from item order by price limit 3", W),
    ("select id from (select id from item order by price)", "select id from item", R),
    ("select id from item -- order by id\n", "select id from item order by id desc", R),
    ("select 'order by' from item", "select 'order by' from item", R),
    ("select 3", "select 3.0", R),
    ("select 0.3", "select price from item where id = 4", R),
    ("select 3", "select '3'", W),
    ("select 1000000000000000001", "select 1000000000000000000", W),
    ("select null", "select null", R),
    ("select name from item where id = 9", "select id from item where id = 9", R),
    ("select count(*) from item", "with t as (select * from item) select count(*) from t", R),
    (NAMES, "select nam from item", W),
    (NAMES, "selec name from item", M),
    (NAMES, "<answer>selec name from item</answer>", W),
    (NAMES, "The names are in item.", M),
    (NAMES, f"{NAMES}; drop table item", W),
]


@pytest.mark.parametrize(("expected", "text", "worth"), SQL)
def test_sql(expected: str, text: str, worth: float, shop: Path) -> None:
    reward = part("sql", database=str(shop), database_field=None, **NEAR)
    assert value(reward, text, item(expected)) == worth


ATTACKS = [
    "insert into item values (9, 'x', 1)",
    "delete from item",
    "drop table item",
    "update item set name = 'x'",
    "create table t (a)",
    "pragma writable_schema = 1",
    "pragma user_version = 9",
    "select * from pragma_table_info('item')",
    "attach '{folder}/other.db' as other",
    "vacuum into '{folder}/other.db'",
    "select load_extension('x')",
    "select writefile('{folder}/other.db', 'x')",
    "select readfile('/etc/passwd')",
    "begin immediate",
    "select zeroblob(1000000000)",
    "select printf('%.*c', 1000000000, 'a')",
    "select format('%1000000000d', 1)",
    "select randomblob(1000000000)",
    "select hex(replace(hex(zeroblob(40000)), '0', hex(zeroblob(40000))))",
    "select max(length(replace(hex(zeroblob(40000 + a.id)), '00', '0'))) from item a, ("
    + " union all ".join(["select 1"] * 400)
    + ")",
    "select count(*) from (select hex(zeroblob(40000 + a.id)) as s from item a, item b, item c, item d, item e order by s)",
    "with recursive r(x) as (select 1 union all select x + 1 from r) "
    "select count(*) from r where hex(zeroblob(45000 + x % 9)) like '%0%0%0%0%0%0%0%0%0%1'",
    "with recursive r(x) as (select 1 union all select x + 1 from r) select count(*) from r where x between 1 and -1",
    "select group_concat(hex(zeroblob(40000))) from item a, item b",
    "with recursive r(x) as (select 1 union all select x + 1 from r) select count(*) from r",
    "with recursive r(x) as (select 1 union all select x + 1 from r) select x from r",
    "with recursive r(x) as (select 'a' union all select x || x from r) select length(x) from r",
    "with recursive r(x) as (select 1 union all select x + 1 from r limit 9999999) select count(*) from r a, r b",
    "with recursive r(x) as (select 1 union all select x + 1 from r) "
    "select sum(instr(hex(zeroblob(45000 + x % 9)), hex(zeroblob(22000)) || '1')) from r",
    "select 1" + " union select 1" * 700,
    "select " + "(" * 4000 + "1" + ")" * 4000,
    "select '\x00'",
    "select '\ud800'",
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda text: text[:40].encode("ascii", "replace").decode())
def test_a_query_can_only_read_and_not_for_long(attack: str, shop: Path) -> None:
    before = shop.read_bytes()
    reward = part("sql", database=str(shop), database_field=None, seconds=0.2, **NEAR)
    began = time.perf_counter()
    assert value(reward, f"<answer>{attack.replace('{folder}', str(shop.parent))}</answer>", item(NAMES)) == W
    assert time.perf_counter() - began < 20
    assert [file.name for file in shop.parent.iterdir()] == ["shop.db"]
    assert shop.read_bytes() == before


def test_each_item_may_have_its_own_database(shop: Path) -> None:
    reward = part("sql", folder=str(shop.parent), field="query", **NEAR)
    example = item(database="shop.db", query=NAMES)
    reward.check_data([example, item()])
    assert value(reward, NAMES, example) == R
    assert value(reward, NAMES, item()) is None
    for name, words in (("none.db", "cannot be read"), (__file__, "is no SQLite database")):
        with pytest.raises(DataError, match=words):
            reward.check_data([item(database=name, query=NAMES)])
    with pytest.raises(DataError, match=r"item 7: the expected query fails: OperationalError: no such column: nam"):
        value(reward, NAMES, item(database="shop.db", query="select nam from item"))


def test_sql_needs_a_database(shop: Path) -> None:
    with pytest.raises(ConfigError, match=r"reward\.parts\.sql\.database=None.*name a file"):
        part("sql", database_field=None)
    with pytest.raises(DataError, match="cannot be read"):
        part("sql", database=str(shop.parent / "none.db"), database_field=None)


def test_the_line_for_people_shows_the_rows_that_differ(shop: Path) -> None:
    reward = part("sql", database=str(shop), database_field=None)
    line = reward.explain("select name, 1 from item where id = 2", item("select name, 2 from item where id = 2"))
    assert line == (
        "wrong, 0: 1 rows, expected 1; has ('ink', 1) and lacks ('ink', 2); read 'select name, 1 from item where id = 2'"
    )
