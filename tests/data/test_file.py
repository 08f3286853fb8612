from __future__ import annotations

import json
import sys

import pytest

from grpo_exp.errors import ConfigError, DataError

QA = {"prompt": "question", "answer": "answer", "split": 2}


def texts(items):
    return [item.prompt[-1]["content"] if isinstance(item.prompt, list) else item.prompt for item in items]


def fault(data, *parts):
    """The one-line message of the DataError that loading raises, which must hold all `parts`."""
    with pytest.raises(DataError) as caught:
        data.load()
    message = str(caught.value)
    assert message.isprintable()
    for part in parts:
        assert part in message, message
    return message


# What a file may look like


def test_reads_every_format_alike(source, write, tmp_path, sums):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(sums), tmp_path / "rows.parquet")
    csv = "id,question,answer\r\n" + "".join(f'{r["id"]},"{r["question"]}",{r["answer"]}\r\n' for r in sums)
    paths = [
        write("rows.jsonl", sums),
        write("rows.json", sums),
        write("rows.csv", csv),
        write("bom.csv", b"\xef\xbb\xbf" + csv.encode()),
        str(tmp_path / "rows.parquet"),
    ]
    sets = [source("file", path=path, **QA).load() for path in paths]
    assert len(sets[0].train) == 8 and len(sets[0].heldout) == 2
    item = next(i for i in sets[0].train + sets[0].heldout if i.id == "s3")
    assert item.prompt == [{"role": "user", "content": "3 + 1 = ?"}]
    assert (item.answer, item.target, item.category) == ("4", None, "")
    for other in sets[1:]:
        assert (other.train, other.heldout, other.sha256) == (sets[0].train, sets[0].heldout, sets[0].sha256)


def test_blank_lines_line_ends_and_unusual_separators(source, write):
    text = '{"question": "a\u2028b", "answer": "x"}\r\n\r\n  \n{"question": "c", "answer": "y"}'
    data = source("file", path=write("rows.jsonl", text), **{**QA, "split": 1}).load()
    assert sorted(texts(data.train + data.heldout)) == ["a\u2028b", "c"]
    assert {i.id for i in data.train + data.heldout} == {"row-1", "row-2"}


def test_csv_values_may_span_lines(source, write):
    path = write("rows.csv", 'question,answer\n"two\nlines, and a comma",1\nb,2\nc\n')
    fault(source("file", path=path, **QA), "rows.csv:5", "1 values for 2 columns (question, answer)")
    data = source("file", path=path, **{**QA, "split": 1}, on_error="skip").load()
    assert sorted(texts(data.train + data.heldout)) == ["b", "two\nlines, and a comma"]


def test_path_is_relative_to_the_current_folder_or_home(source, write, tmp_path, monkeypatch, sums):
    write("rows.jsonl", sums)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert source("file", path="rows.jsonl", **QA).load() == source("file", path="rows.jsonl", **QA).load()
    assert len(source("file", path="~/rows.jsonl", **QA).load().train) == 8


def test_limit_reads_the_first_rows_only(source, write, sums):
    path = write("rows.jsonl", "\n".join([*map(json.dumps, sums[:5]), "not JSON"]))
    data = source("file", path=path, limit=5, **QA).load()
    assert {i.id for i in data.train + data.heldout} == {"s0", "s1", "s2", "s3", "s4"}


# What becomes of a row


def test_templates_replace_plain_fields_only(source, write):
    rows = [{"a b": 51.0, "x": "t", "n": -0.5, "big": 1e300}, {"a b": 2, "x": "{x}", "n": 7.25, "big": True}]
    data = source(
        "file", path=write("r.jsonl", rows), prompt="{{{a b}}} {x}: {n}", answer="{a b}", target="{x}{big}", split=1
    ).load()
    items = sorted(data.train + data.heldout, key=lambda item: item.id)
    assert texts(items) == ["{51} t: -0.5", "{2} {x}: 7.25"]
    assert [i.answer for i in items] == ["51", "2"]
    assert [i.target for i in items] == ["t1e+300", "{x}true"]
    fault(source("file", path=write("r.jsonl", rows), prompt="{x.__class__}", answer=None), "no field 'x.__class__'")


@pytest.mark.parametrize("prompt", ["{x", "x}", "{}", "{a{b}}"])
def test_unpaired_braces_are_refused(source, prompt):
    with pytest.raises(ConfigError, match=r"data.prompt=.*column \d.*names no field"):
        source("file", prompt=prompt)


def test_other_fields_become_columns(source, write):
    row = {"question": "q", "answer": "so #### 1,200 ", "level": 3, "tests": ["a"]}
    rows = [row, {**row, "question": "p"}]
    options = {"answer_pattern": r"####\s*(.+)$", "category": "level", "target": "{question} {level}", **QA, "split": 1}
    item = source("file", path=write("r.jsonl", rows), **options).load().train[0]
    assert (item.answer, item.category, item.target[-1]) == ("1,200", "3", "3")
    assert item.columns == {"answer": "so #### 1,200 ", "tests": ["a"]}


def test_answers_may_be_absent(source, write, sums):
    assert source("file", path=write("r.jsonl", sums), **{**QA, "answer": None}).load().train[0].answer is None


def test_system_and_examples_as_chat_and_as_text(source, write, sums):
    path = write("r.jsonl", sums)
    shown = {"system": "Be brief.", "examples": [["1 + 1 = ?", "2"], ["2 + 5 = ?", "7"]]}
    chat = source("file", path=path, **shown, **QA).load().train[0].prompt
    assert [m["role"] for m in chat] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert [m["content"] for m in chat][:5] == ["Be brief.", "1 + 1 = ?", "2", "2 + 5 = ?", "7"]
    asked = chat[-1]["content"]
    plain = source("file", path=path, chat=False, **shown, **QA).load().train[0].prompt
    assert plain == f"Be brief.\n\n1 + 1 = ?\n2\n\n2 + 5 = ?\n7\n\n{asked}\n"
    assert source("file", path=path, chat=False, **QA).load().train[0].prompt == asked


def test_chat_messages_in_the_rows(source, write):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go"}]
    rows = [{"m": talk}, {"m": [{"role": "system", "content": "s"}, *talk]}]
    options = {"path": write("r.jsonl", rows), "prompt": "m", "answer": None, "split": 1}
    data = source("file", examples=[["q", "a"]], **options).load()
    assert sorted(" ".join(m["content"] for m in i.prompt) for i in data.train + data.heldout) == [
        "q a hi yes? go",
        "s q a hi yes? go",
    ]
    fault(source("file", system="t", **options), "r.jsonl:2", "data.system=null")
    fault(source("file", chat=False, **options), "r.jsonl:1", "data.chat=true")


@pytest.mark.parametrize(
    "messages, part",
    [
        ([], "last message"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "last message"),
        ([{"role": "bot", "content": "a"}], "message 0"),
        ([{"role": "user", "content": None}], "message 0"),
        ([{"role": "user", "content": " "}], "is empty"),
        ([{"role": "user", "content": "a", "tool_calls": [1]}], "tool_calls"),
        (["hello"], "expected an object"),
    ],
)
def test_bad_chat_messages(source, write, messages, part):
    fault(source("file", path=write("r.jsonl", [{"m": messages}] * 2), prompt="m", answer=None), "r.jsonl:1", part)


def test_own_ids_only_where_they_are_unique(source, write, sums):
    sums[3]["id"] = "s4"
    data = source("file", path=write("r.jsonl", sums), **QA).load()
    assert {i.id for i in data.train + data.heldout} == {f"row-{n}" for n in range(1, 11)}


# The split


def test_split_depends_on_split_seed_alone(source, write, sums):
    path = write("r.jsonl", sums)
    first, again, other = (source("file", path=path, split_seed=s, **QA).load() for s in (0, 0, 1))
    assert first == again
    assert {i.id for i in first.train}.isdisjoint(i.id for i in first.heldout)
    assert first.heldout != other.heldout and first.sha256 != other.sha256
    assert "8 to train on, 2 held out, data.split_seed=0" in first.source
    assert [len(source("file", path=path, **{**QA, "split": f}).load().heldout) for f in (0.001, 0.3, 0.5)] == [1, 3, 5]


def test_parts_of_the_training_items_share_none(source, write, sums):
    path = write("r.jsonl", sums)
    whole = source("file", path=path, **QA).load()
    first = source("file", path=path, train_to=0.4, **QA).load()
    second = source("file", path=path, train_from=0.4, **QA).load()
    assert [*first.train, *second.train] == whole.train and len(first.train) == 3
    assert first.heldout == second.heldout == whole.heldout
    assert "3 to train on (from 0 to 0.4 of 8)" in first.source


def test_split_may_be_a_second_file(source, write, sums):
    path = write("r.jsonl", sums)
    test = write("t.json", [{"id": "s1", "question": "9 + 9 = ?", "answer": 18}])
    data = source("file", path=path, **{**QA, "split": test}).load()
    assert len(data.train) == 10
    assert [(i.id, i.answer) for i in data.heldout] == [("heldout-s1", "18")]
    fault(source("file", path=path, **{**QA, "split": test[:-1] + "nl"}), "data.split=", "Did you mean 't.json'?")


def test_prompts_that_are_held_out_are_not_trained_on(source, write, sums):
    path = write("r.jsonl", sums)
    test = write("t.jsonl", [{"question": sums[4]["question"], "answer": 5}])
    data = source("file", path=path, **{**QA, "split": test}).load()
    assert len(data.train) == 9 and sums[4]["question"] not in texts(data.train)
    assert data.notes == ["1 training items dropped: their prompt is also held out"]
    fault(source("file", path=path, **{**QA, "split": path}), "nothing is left to train on", "10 dropped")


@pytest.mark.parametrize("split", [0, -3, 0.0, 1.0, 1.5, True, None, "", [1]])
def test_impossible_splits_are_refused(source, split):
    with pytest.raises(ConfigError, match=r"data.split=.*a count such as data.split=100"):
        source("file", split=split)


def test_split_must_leave_something_to_train_on(source, write, sums):
    path = write("r.jsonl", sums)
    fault(source("file", path=path, **{**QA, "split": 10}), "data.split=10", "10 of 10 items")
    fault(source("file", path=write("one.jsonl", sums[:1]), **{**QA, "split": 0.5}), "1 of 1 items")
    fault(source("file", path=path, train_from=0.999, **QA), "nothing is left", "data.train_from=0.999")


# Wrong options


@pytest.mark.parametrize(
    "options, part",
    [
        ({"train_from": 0.5, "train_to": 0.5}, "data.train_from=0.5 data.train_to=0.5"),
        ({"answer_pattern": "(", "answer": "a"}, "data.answer_pattern='(': not a regular expression"),
        ({"answer_pattern": "a", "answer": "a"}, "needs a group"),
        ({"answer_pattern": "(a)", "answer": None}, "data.answer"),
        ({"examples": [["only one"]]}, "data.examples[0]"),
        ({"system": " "}, "data.system"),
        ({"replace": {"a": [["x"]]}}, "data.replace.a"),
        ({"replace": {"a": [["[", ""]]}}, "data.replace.a='['"),
    ],
)
def test_wrong_options_are_refused(source, options, part):
    with pytest.raises(ConfigError) as caught:
        source("file", **options)
    assert part in str(caught.value)


def test_a_wrong_replacement_is_named(source, write, sums):
    with pytest.raises(ConfigError, match=r"data.replace.question: replacement '\\\\2'.*invalid group"):
        source("file", path=write("r.jsonl", sums), replace={"question": [["(a)?", r"\2"]]}, **QA).load()


# Faults of a file


def test_paths_that_lead_nowhere(source, write, tmp_path, sums):
    path = write("sums.jsonl", sums)
    fault(source("file"), "data=file needs data.path=FILE")
    fault(source("file", path=path.replace("sums", "sum")), "no such file", "Did you mean 'sums.jsonl'?")
    fault(source("file", path=str(tmp_path / "no" / "x.csv")), "does not exist")
    fault(source("file", path=str(tmp_path)), "a folder", "sums.jsonl")
    fault(source("file", path=write("x.txt", "hi")), "'.txt'", ".json, .jsonl, .csv, .parquet")
    fault(source("file", path="x" * 5000 + ".csv"), "cannot be read")
    fault(source("file", path="~nobody-at-all/x.csv"), "data.path=~nobody-at-all/x.csv")
    fault(source("file", path="evil\x1b[2J\nname.csv"), "no such file")


def test_faults_of_the_whole_file(source, write):
    fault(source("file", path=write("a.jsonl", "")), "a.jsonl: no rows")
    fault(source("file", path=write("a.jsonl", "\n \n")), "a.jsonl: no rows")
    fault(source("file", path=write("a.json", "")), "no rows")
    fault(source("file", path=write("a.json", "[]")), "no rows")
    fault(source("file", path=write("a.csv", "question,answer\n")), "no rows")
    fault(
        source("file", path=write("a.json", '{"data": [], "n": 1}')),
        "expected one list of objects, found an object with data, n",
    )
    fault(source("file", path=write("a.json", '{"a": 1}\n{"a": 2}')), "a.json:2", "name the file .jsonl")
    fault(source("file", path=write("a.json", '[{"a": 1},\n {"a": tru}]')), "a.json:2: malformed JSON at column 8", "tru")
    fault(source("file", path=write("a.json", "[" * 100_000)), "nested too deeply")
    fault(source("file", path=write("a.jsonl", b'{"a": "x"}\n{"a": "caf\xe9"}')), "a.jsonl:2: not UTF-8 (byte 0xe9)", "iconv")
    fault(source("file", path=write("a.csv", "a,b,a\n1,2,3\n")), "a.csv:1", "'a' twice")
    fault(source("file", path=write("a.csv", 'a,b\n1,"2\n')), "a.csv:2: malformed CSV")


def test_parquet_faults(source, write, monkeypatch):
    pytest.importorskip("pyarrow")
    path = write("a.parquet", b"not a table")
    fault(source("file", path=path), "a.parquet: cannot be read as Parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    fault(source("file", path=path), "pip install 'grpo-exp[parquet]'")


# Faults of a row

BAD = {
    '{"question": "q", "answer": 1': ["malformed JSON at column 30", '"answer": 1'],
    '{"question": "q" "answer": "\x1b[31m\x07"}': ["malformed JSON at column 18"],
    "[1, 2]": ["expected an object with fields, found a list"],
    "null": ["expected an object with fields, found null"],
    '{"question": "q"}': ["no field 'answer' (named by data.answer)", "has: question"],
    '{"question": "q", "anwser": 1}': ["has: question, anwser", "Did you mean 'anwser'?"],
    '{"question": "", "answer": 1}': ["field 'question' (named by data.prompt) is empty"],
    '{"question": "q", "answer": null}': ["field 'answer' (named by data.answer) is empty"],
    '{"question": "q", "answer": {"a": 1}}': ["field 'answer' (named by data.answer) is a dict"],
    '{"question": {"a": 1}, "answer": 1}': ["field 'question' (named by data.prompt) is a dict"],
    '{"question": "q", "answer": NaN}': ["field 'answer' (named by data.answer) is nan"],
    '{"question": "q", "answer": 1e999}': ["is inf"],
    '{"question": "\\ud800", "answer": 1}': ["half a surrogate pair (\\ud800)"],
    '{"question": "q", "answer": ' + "9" * 5000 + "}": ["malformed JSON (Exceeds the limit"],
}


@pytest.mark.parametrize("line", BAD)
def test_a_faulty_row_ends_the_run_or_is_skipped(source, write, sums, line):
    path = write("r.jsonl", "\n".join([*map(json.dumps, sums), line]))
    message = fault(source("file", path=path, **QA), "r.jsonl:11: ", "data.on_error=skip", *BAD[line])
    assert len(message) < 500
    data = source("file", path=path, on_error="skip", **QA).load()
    assert len(data.train) + len(data.heldout) == 10
    assert data.notes[0].startswith("1 of 11 rows skipped: ") and BAD[line][0] in data.notes[1]


def test_unused_fields_may_hold_anything(source, write, sums):
    text = "\n".join(json.dumps({**row, "x": float("nan"), "y": "\ud800"}) for row in sums)
    assert len(source("file", path=write("r.jsonl", text), **QA).load().train) == 8


def test_a_pattern_that_does_not_match(source, write, sums):
    path = write("r.jsonl", [*sums[:3], {"id": "x", "question": "q", "answer": "no mark"}])
    fault(source("file", path=path, answer_pattern=r"^(\d+)$", **QA), "r.jsonl:4", "finds no answer in 'answer'", "no mark")


def test_skipped_rows_are_counted_by_reason_and_the_first_three_listed(source, write, sums):
    lines = [*map(json.dumps, sums), "{", '{"question": "a"}', '{"question": "b"}', "[]", "x"]
    data = source("file", path=write("r.jsonl", "\n".join(lines)), on_error="skip", **QA).load()
    assert data.notes[0] == "5 of 15 rows skipped: malformed line: 2, no field 'answer': 2, not an object: 1"
    assert [note.partition("r.jsonl:")[2].partition(":")[0] for note in data.notes[1:]] == ["11", "12", "13"]


def test_all_rows_filtered_out(source, write, sums):
    data = source("file", path=write("r.jsonl", sums), prompt="Question", on_error="skip")
    fault(data, "none of its 10 rows can be used: no field 'Question': 10", "Did you mean 'question'?")
