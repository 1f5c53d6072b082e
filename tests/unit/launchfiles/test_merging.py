"""nanotron's blocks in a file of the user's own, of which all else stays."""

import pytest
import yaml

from tests.unit.launchfiles.cases import ABOUT, EXAMPLES
from tuner.errors import UsageError
from tuner.launchfiles import export
from tuner.launchfiles.editing import merged
from tuner.launchfiles.nanotron import configuration

BLOCKS = export("nanotron", *EXAMPLES["nanotron"].parts(), ABOUT)
VALUES = configuration(*EXAMPLES["nanotron"].parts())
MINE = """\
# my run
general:
  project: debug   # of last week
  run: 'qwen'
data_stages:
- data:
    dataset_folder:
    - /data/a
  name: "Stable Stage"
  start_training_step: 1
optimizer:
  clip_grad: 1.0
  zero_stage: 0  # none
  learning_rate_scheduler:
    learning_rate: 3.0e-04
  optimizer_factory:
    adam_eps: 1.0e-08
    name: sgd
parallelism: {dp: 1, tp: 1, pp: 1}
tokens:

  # a long one
  train_steps: 32000
  micro_batch_size: 64
lighteval: null
"""


def test_only_the_blocks_fields_change_and_all_else_is_spelled_as_it_was():
    text = merged(BLOCKS, MINE)
    before, after = yaml.safe_load(MINE), yaml.safe_load(text)
    assert _without(after) == _without(before)
    assert list(after) == list(before)
    for block, fields in VALUES.items():
        for name, value in fields.items():
            if isinstance(value, dict):
                value = {**before[block][name], **value}
            assert after[block][name] == value
    changed = {"zero_stage", "name: sgd", "parallelism:", "micro_batch_size"}
    kept = [line for line in MINE.splitlines() if not any(word in line for word in changed)]
    assert set(kept) <= set(text.splitlines())
    assert "  zero_stage: 1  # none" in text.splitlines()


def test_the_header_is_at_the_top_and_once():
    once = merged(BLOCKS, MINE)
    assert once.startswith("# Written by tuner on 2026-01-15 from study st-0123456789ab")
    assert merged(BLOCKS, once) == once
    head = BLOCKS.partition("\n\n")[0]
    for gap in ("", "\n", "\r\n"):  # nothing is lost behind a header that was edited
        text = merged(BLOCKS, f"{head}\n{gap}general: {{run: qwen}}\n\nmine: 1\n")
        assert yaml.safe_load(text) == {"general": {"run": "qwen"}, "mine": 1, **VALUES}
        assert text.count("Written by tuner") == 1


def test_missing_and_empty_blocks_are_added_and_files_of_windows_read():
    for empty in ("", "tokens:\n", "tokens: ~\n", "tokens: NULL\n"):
        after = yaml.safe_load(merged(BLOCKS, f"general:\n  project: x\n{empty}"))
        assert after == {"general": {"project": "x"}, **VALUES}
    text = MINE.replace("\n", "\r\n").rstrip()
    assert yaml.safe_load(merged(BLOCKS, text)) == yaml.safe_load(merged(BLOCKS, MINE))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be YAML with fields at the top"),
        ("- a\n- b\n", "must be YAML with fields at the top"),
        ("a: [1\n", "must be YAML: "),
        ("a: 1\na: 2\n", "must be YAML: .*duplicate"),
        ("tokens: 3\n", r"^into\.tokens: got 3; must be a block of fields"),
        ("tokens: 0E1\n", r"^into\.tokens: got 0E1; must be a block of fields"),
        ("optimizer:\n  optimizer_factory: x\n", r"^into\.optimizer\.optimizer_factory: got 'x'"),
    ],
)
def test_what_cannot_be_merged_into_is_refused(text, reason):
    with pytest.raises(UsageError, match=reason):
        merged(BLOCKS, text)


def test_tags_make_no_objects():
    tag = "!!python/object/apply:os.system"
    assert tag in merged(BLOCKS, f"general: {tag} ['false']\ntokens:\n  train_steps: 1\n")


WORDS = """
0E0 0e0 0E1 0E-1 0.0E0 0.e0 .0e0 -0e0 1E5 1e5 1e+05 1.5E+3 -.5e3 .5E3 5.E3 1.E5 12e03 1E400 1e-400
1e5_0 6.02E23 1_0.5_0 .5 +.5 1. 1.e+5 0.50 00.5 +1.5 -0.0 0.1000000000000000055511151231257827
0 -0 +12 -12 1_000 1__0 100_ _1 010 0777 08 009 0o7 0o1_7 0x1F 0X1f 0xAbC 0x_1F 0b101 0b1_0
123456789012345678901234567890 1:30 190:20:30 1:2.5 1:30:00.5 .inf -.INF +.Inf .nan .NaN
~ null Null NULL true True TRUE false yes Yes no NO on off Off y n 'it' "x" '0E1' "1e5" '~' 'no'
2020-01-01 2020-01-01T00:00:00Z 2001-12-14t21:59:43.10-05:00 2020-13-45 12:30:45 1e 0x 1.2.3
"""
# Words that some reader of YAML takes for a number, a truth, null or a date, and some others.


def test_words_are_spelled_as_they_were():
    for word in (*WORDS.split(), "2001-12-14 21:59:43.10 -5", "2020-01-01 10:00:00"):
        lines = [f"{word}: {word}", "mine:", f"- {word}", f"- {{{word}: [{word}]}}"]
        ours = [f"  {word}: {word}", f"  own: {word}"]
        text = "\n".join([*lines, "tokens:", *ours, ""])
        after = merged(BLOCKS, text)
        assert [line for line in after.splitlines() if line in (*lines, *ours)] == lines + ours
        if word != "2020-13-45":  # which PyYAML refuses, and other readers may not
            before = yaml.safe_load(text)
            expected = {**before, **VALUES, "tokens": {**before["tokens"], **VALUES["tokens"]}}
            assert repr(by_text(yaml.safe_load(after))) == repr(by_text(expected)), word


def by_text(value):
    """Fields in the order of their text, to be compared as text: no NaN equals another."""
    if not isinstance(value, dict):
        return value
    return sorted(((key, by_text(one)) for key, one in value.items()), key=repr)


@pytest.mark.parametrize(
    "text",
    [
        "base: &b {train_steps: 0E1}\ntokens: *b\n",
        "tokens: &b\n  train_steps: 1\nother: *b\n",
        "tokens: &b\n  train_steps: 1\nother:\n  <<: *b\n",
        "base: &b\n  tokens: {train_steps: 1}\n<<: *b\n",
        "base: &b\n  optimizer_factory: {eps: 1}\noptimizer:\n  <<: *b\n  zero_stage: 3\n",
        "base: &b\n  optimizer_factory: {eps: 1}\noptimizer: *b\n",
        "rate: &r 1E5\noptimizer: &o {lr: *r}\nother: [*o, *r]\n",
    ],
)
def test_what_an_anchor_puts_elsewhere_stays(text):
    before, after = yaml.safe_load(text), yaml.safe_load(merged(BLOCKS, text))
    factory = before.get("optimizer", {}).get("optimizer_factory", {})
    whole = {name: {**before.get(name, {}), **fields} for name, fields in VALUES.items()}
    whole["optimizer"]["optimizer_factory"] = {
        **factory,
        **VALUES["optimizer"]["optimizer_factory"],
    }
    assert after == {**before, **whole}


def _without(document):
    """What no block decides."""
    kept = {}
    for name, value in document.items():
        fields = VALUES.get(name)
        kept[name] = (
            value if fields is None else {k: v for k, v in value.items() if k not in fields}
        )
    return kept
