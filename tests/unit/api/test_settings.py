"""Settings of the service: variables, a file, and what is wrong with them."""

import pytest

from api.settings import Settings, read_settings
from tuner.errors import UsageError


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.delenv(f"TUNER_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_options_go_before_variables_and_these_before_the_file(place, monkeypatch):
    (place / ".env").write_text("TUNER_PORT=1\nTUNER_HOST=10.0.0.1\nTUNER_THREADS=3\nOTHER=x\n")
    monkeypatch.setenv("TUNER_PORT", "2")
    monkeypatch.setenv("TUNER_ALLOWED_HOSTS", "a.example, b.example,")
    monkeypatch.setenv("TUNER_REQUIRE_KEYS", "true")
    monkeypatch.setenv("TUNER_DB", "")
    found = read_settings(host="127.0.0.2")
    assert (found.host, found.port, found.threads) == ("127.0.0.2", 2, 3)
    assert found.allowed_hosts == ("a.example", "b.example")
    assert found.require_keys is True
    assert found.db is None


PORTS = "must be a whole number from 0 up to 65535"


def test_what_is_wrong_names_its_variable_and_what_is_allowed(monkeypatch):
    rate = "must be a number above 0 up to 1000000"
    for name, value, allowed in (
        ("PORT", "x", PORTS),
        ("PORT", "70000", PORTS),
        ("PORT", "80.5", PORTS),
        ("THREADS", "10", "must be a whole number from 2 up to 9"),
        ("REQUIRE_KEYS", "perhaps", "must be true or false"),
        ("RATE_PER_S", "0", rate),
        ("RATE_PER_S", "inf", rate),
        ("RATE_PER_S", "nan", rate),
    ):
        with monkeypatch.context() as patch, pytest.raises(UsageError) as caught:
            patch.setenv(f"TUNER_{name}", value)
            read_settings()
        assert str(caught.value) == f"TUNER_{name}: got {value!r}; {allowed}"
    with pytest.raises(UsageError) as caught:
        read_settings(port="http")
    assert str(caught.value) == f"port: got 'http'; {PORTS}"
