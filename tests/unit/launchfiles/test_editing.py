"""Values put into a file: every other character stays."""

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tuner.errors import UsageError
from tuner.launchfiles.editing import changed, changes, edited, spelled_in

TEXT = """\
# how we train
base: a/b   # the model
odd:   [1,
  2]

lists:
   - x: 1    # indented by three
empty:
block:
    inner: true  # four blanks
    words: >
      folded
      text

last: 'quoted'
# the end
"""


@pytest.mark.parametrize(
    ("wanted", "old", "new"),
    [
        ({"base": "c"}, "base: a/b   #", "base: c   #"),
        ({"empty": 3}, "empty:\n", "empty: 3\n"),
        ({"last": True}, "'quoted'", "true"),
        ({"block": {"inner": False}}, "inner: true  #", "inner: false  #"),
        ({"lists": None}, "lists:\n   - x: 1    # indented by three\n", ""),
        ({"base": None}, "base: a/b   # the model\n", ""),
        ({"last": "b", "more": {"x": 1}}, "'quoted'\n", "b\nmore:\n  x: 1\n"),
        ({"block": {"new": 1}}, "      text\n", "      text\n    new: 1\n"),
        ({"odd": [4]}, "odd:   [1,\n  2]\n", "odd:\n- 4\n"),
        ({"empty": {"a": {"b": 1, "c": None}}}, "empty:\n", "empty:\n  a:\n    b: 1\n"),
        ({"gone": None}, "", ""),
    ],
)  # fmt: skip
def test_a_value_is_changed_where_it_stands(wanted, old, new):
    assert edited(TEXT, wanted) == TEXT.replace(old, new, 1)


def test_json_stays_as_it_is_laid_out():
    text = '{\n  "a": 1,\n  "b": {"c": true},\n  "d": "x"\n}\n'
    made = edited(text, {"a": None, "b": {"c": False, "e": 2}, "new": [1]})
    assert made == '{\n  "b": {"c": false, "e": 2},\n  "new": [1],\n  "d": "x"\n}\n'
    assert json.loads(made)
    assert edited('{"a": 1}', {"a": None}) == "{}"


@pytest.mark.parametrize(
    "text", ["a: &x {b: 1}\nc: *x\n", "base: &x\n  b: 1\nc:\n  <<: *x\n", "a: &x\n  b: 1\nc: *x\n"]
)
def test_what_stands_in_several_places_is_not_changed_in_one(text):
    with pytest.raises(UsageError, match=r"write it out first"):
        edited(text, {"a": {"b": 2}, "c": {"b": 2}, "base": {"b": 2}})


LEAVES = st.one_of(st.integers(), st.booleans(), st.text("ab: #'", max_size=5))
NAMES = st.sampled_from(["a", "b", "c", "fsdp_d"])
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=9)
BLOCKS = st.dictionaries(NAMES, TREES, min_size=1, max_size=4)


@given(before=BLOCKS, after=BLOCKS, flow=st.booleans())
@settings(max_examples=examples(80))
def test_what_is_read_is_what_was_meant(before, after, flow):
    text = json.dumps(before) if flow else yaml.safe_dump(before)
    wanted = changes(before, after)
    assert changed(before, wanted) == after
    assert yaml.safe_load(edited(text, wanted)) == after


def test_a_file_keeps_its_own_spelling_and_what_it_leaves_to_others():
    there = {"fsdp_config": {"reshard_after_forward": True}, "batch": "auto", "same": 1}
    wanted = {"fsdp_config": {"fsdp_reshard_after_forward": False}, "batch": 2, "same": 1}
    assert spelled_in(there, wanted) == {"fsdp_config": {"reshard_after_forward": False}}
    old = {"gradient_checkpointing": False}
    assert spelled_in(old, {"activation_checkpointing": True}) == {"gradient_checkpointing": True}


def test_tabs_that_indent_json_stay():
    text = '{\n\t"a": 1,\n\t"b": {\n\t\t"c": 2\n\t}\n}\n'
    made = edited(text, {"a": 3, "b": {"d": 4}})
    assert made == text.replace("1", "3").replace('"c": 2', '"c": 2,\n\t\t"d": 4')
