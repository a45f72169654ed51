"""Rows whose hash ids begin with those of the row before read as they would alone."""

from __future__ import annotations

import json
import random

import orjson
import pytest

from engine.traces.growing import GrowingIds

SYSTEM = list(range(1000, 1200))


def as_parsed(row):
    """What orjson says of a row, its hash ids as a plain list."""
    value = orjson.loads(row)
    if isinstance(value, dict) and not isinstance(value.get("hash_ids"), (list, type(None))):
        value["hash_ids"] = list(value["hash_ids"])
    return value


def read(texts):
    """Each row as it comes out, its hash ids as a plain list."""
    ids, out = GrowingIds(), []
    for text in texts:
        row = ids.loads(memoryview(text.encode()))
        if isinstance(row, dict) and "hash_ids" in row and not isinstance(row["hash_ids"], (list, type(None))):
            row["hash_ids"] = list(row["hash_ids"])
        out.append(row)
    return out


def test_what_grows_is_whole_again():
    """Longer, shorter, equal and other lists, written with and without blanks."""
    lists = [SYSTEM, [*SYSTEM, 7], [*SYSTEM, 7, 8, 9], SYSTEM, SYSTEM, [5, *SYSTEM], [], [*SYSTEM, 7]]
    for separators in ((", ", ": "), (",", ":"), (" , ", " : ")):
        texts = [json.dumps({"input_length": n, "hash_ids": ids, "b": 1}, separators=separators)
                 for n, ids in enumerate(lists)]  # fmt: skip
        assert [row["hash_ids"] for row in read(texts)] == lists
        assert [row["input_length"] for row in read(texts)] == list(range(len(lists)))


def test_a_number_that_begins_like_one_is_another():
    """1199 goes on as 11990: the text of the first list is a beginning of the second, its numbers are not."""
    longer = [*SYSTEM[:-1], 11990, 3]
    rows = read([json.dumps({"hash_ids": SYSTEM}), json.dumps({"hash_ids": longer})])
    assert rows[1]["hash_ids"] == longer


FIRST = json.dumps({"hash_ids": SYSTEM})
INNER = FIRST[len('{"hash_ids": [') : -2]


@pytest.mark.parametrize(
    "text",
    [
        f'{{"hash_ids": [{INNER}, 3], "hash_ids": [4]}}',  # the last of two counts
        f'{{"hash_ids": [{INNER}, 3], "hash\\u005fids": [4]}}',
        f'{{"x": {{"hash_ids": [{INNER}, 3]}}, "input_length": 4}}',
        f'{{"x": {{"hash_ids": [{INNER}, 3]}}, "hash_ids": null}}',
        f'{{"say": "\\"hash_ids\\": [{INNER}, 3]", "hash_ids": [4]}}',
        f'{{"hash_ids": [{INNER}, 3.5]}}',
        f'{{"hash_ids": [{INNER}, "a"]}}',
        f'{{"hash_ids": [{INNER}, [3]]}}',
        f'{{"hash_ids": [{INNER}, {1 << 70}]}}',
        f'["hash_ids", [{INNER}, 3]]',
        f'{{"hash_ids" : [{INNER}\t, 3]}}',
    ],
)
def test_odd_rows_read_as_they_stand(text):
    """Named twice, in another object, in text, of other things than whole numbers: as orjson has them."""
    assert read([FIRST, text, FIRST])[1:] == [as_parsed(text), as_parsed(FIRST)]


@pytest.mark.parametrize(
    "text", [f'{{"hash_ids": [{INNER}, ]}}', f'{{"hash_ids": [{INNER},, 3]}}', FIRST[:-1], FIRST[:-9]]
)
def test_bad_json_stays_bad(text):
    """The refusal is that of the whole row."""
    with pytest.raises(orjson.JSONDecodeError) as whole:
        orjson.loads(text)
    with pytest.raises(orjson.JSONDecodeError) as refused:
        read([FIRST, text])
    assert str(refused.value) == str(whole.value)


def test_random_sessions():
    """Interleaved sessions that grow, branch and start anew."""
    draw = random.Random(4)
    lists = [SYSTEM]
    for _ in range(300):
        base = draw.choice(lists[-3:])
        lists.append(base[: draw.choice([len(base), len(base) // 2])] + [draw.randrange(10**draw.randint(1, 18))
                     for _ in range(draw.randrange(9))])  # fmt: skip
    texts = [json.dumps({"hash_ids": ids, "n": n}) for n, ids in enumerate(lists)]
    assert read(texts) == [orjson.loads(text) for text in texts]
