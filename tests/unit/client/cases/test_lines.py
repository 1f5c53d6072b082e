"""Lines: split as they come, and read strictly."""

import io
from collections.abc import Iterator

import pytest

from tuner.client.cases import lines
from tuner.client.cases.lines import LARGEST_LINE_BYTES, parse_line, read_batches
from tuner.errors import UsageError


class Pieces:
    """A stream that hands out given pieces, as a pipe does."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces: Iterator[bytes] = iter(pieces)

    def read1(self, size: int = -1) -> bytes:
        return next(self._pieces, b"")


def test_whole_lines_are_handed_on_at_once() -> None:
    batches = read_batches(Pieces(b"a\nb", b"", b"never read"))
    assert next(batches) == [b"a"]
    assert next(batches) == [b"b"]


def test_lines_may_be_cut_anywhere() -> None:
    assert list(read_batches(Pieces(b"on", b"e\ntw", b"o\nthree\n"))) == [
        [b"one"],
        [b"two", b"three"],
    ]


def test_a_huge_line_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LARGEST_LINE_BYTES", 8)
    found = [x for batch in read_batches(Pieces(*[b"x" * 6] * 50, b"\nnext\n")) for x in batch]
    assert [len(found[0]) > 8, len(found[0]) < 30, found[1:]] == [True, True, [b"next"]]


def test_a_stream_that_breaks_is_the_files_fault() -> None:
    class Broken:
        def read1(self, size: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(UsageError, match=r"cases: .*Input/output error"):
        list(read_batches(Broken()))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nope", "must be JSON: Expecting value at character 1"),
        (b'{"a": NaN}', "must be JSON: NaN is not JSON"),
        (b'{"a": -Infinity}', "must be JSON: -Infinity is not JSON"),
        (b'{"a": 1e999}', "must be JSON: 1e999 is too large a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is too large a number"),
        (b'{"a": 1} {"b": 2}', "must be JSON: Extra data"),
        (b'{"a": "\xff"}', "must be JSON in UTF-8"),
        (b"[1]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"a": ' + b"[" * 100_000, "may have 12 levels"),
        (b'{"a": ' + b"[" * 13 + b"]" * 13 + b"}", "may have 12 levels"),
        (b'{"a": "' + b"x" * LARGEST_LINE_BYTES + b'"}', f"must be {LARGEST_LINE_BYTES} bytes"),
    ],
    ids=lambda value: str(value[:20]),
)
def test_a_line_that_is_no_case(line: bytes, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_line(line, 7)
    assert caught.value.field == "case"
    assert caught.value.given == "line 7"
    assert why in caught.value.allowed


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (b'{"a": 1, "a": 2}', "a"),
        (b'{"a": {"b": [1, {"c": 1, "d": {}, "c": 2}]}}', "a.b.c"),
        (b'{"": 1, "": 2}', "case"),
    ],
)
def test_a_name_given_twice_is_found(line: bytes, path: str) -> None:
    with pytest.raises(UsageError, match="must be given once") as caught:
        parse_line(line, 1)
    assert caught.value.field == path


@pytest.mark.parametrize(
    "line", [b'{"a": [1, 2.5, "\xc3\xa9"]}', b'\xef\xbb\xbf {"a": 1}\r', b"{}"]
)
def test_a_line_that_is_an_object(line: bytes) -> None:
    assert isinstance(parse_line(line, 1), dict)


def test_a_batch_is_a_file_at_once() -> None:
    assert len(list(read_batches(io.BytesIO(b"{}\n" * 1000)))) == 1
