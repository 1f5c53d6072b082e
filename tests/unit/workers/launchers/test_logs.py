from workers.measuring.records import log_tail


def test_colors_and_control_characters_are_removed(tmp_path):
    log = tmp_path / "rank.log"
    log.write_bytes(b"\x1b[31;1mred\x1b[0m \x1b]0;title\x07plain\x00\x08\tkept\r\n1%\r2%")
    assert log_tail(log) == "red plain\tkept\n1%\n2%"
