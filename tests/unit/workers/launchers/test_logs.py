from workers.measuring.files import log_tail


def test_no_log_is_an_empty_tail(tmp_path) -> None:
    assert log_tail(tmp_path / "none.log") == ""


def test_only_the_end_is_kept(tmp_path) -> None:
    log = tmp_path / "rank.log"
    log.write_text("x" * 10_000 + "the end")
    tail = log_tail(log)
    assert len(tail) == 4000
    assert tail.endswith("the end")


def test_colors_and_control_characters_are_removed(tmp_path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"\x1b[31;1mred\x1b[0m \x1b]0;title\x07plain\x00\x08\tkept\r\n1%\r2%")
    assert log_tail(log) == "red plain\tkept\n1%\n2%"


def test_bytes_that_are_not_text_are_replaced(tmp_path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes("é".encode()[1:] + b"ok\xff")
    assert log_tail(log) == "\ufffdok\ufffd"
