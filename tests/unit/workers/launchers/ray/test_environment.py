from pathlib import Path

import pytest

from tuner.errors import UsageError
from workers.launchers.ray import launcher
from workers.launchers.ray.launcher import RayDriver, environment

AT = "10.0.0.1:6379"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home without a token."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "inherited",
    [
        {},
        {"RAY_AUTH_MODE": "token"},
        {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "t"},
        {"RAY_AUTH_TOKEN_PATH": "/nowhere"},
    ],
)
def test_a_cluster_is_not_used_without_a_token(inherited):
    with pytest.raises(UsageError, match="must be a cluster with token authentication") as error:
        environment(AT, inherited)
    assert error.value.field == "ray"
    assert AT in str(error.value)
    assert "\n" not in str(error.value)


def test_a_token_is_found_where_ray_looks_for_it(home):
    assert environment(AT, {"RAY_AUTH_TOKEN": "t"})["RAY_AUTH_TOKEN"] == "t"
    (home / "token").write_text("t")
    path = str(home / "token")
    assert environment(AT, {"RAY_AUTH_TOKEN_PATH": path})["RAY_AUTH_TOKEN_PATH"] == path
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("t")
    assert environment(AT, {})["RAY_AUTH_MODE"] == "token"


def test_a_cluster_of_our_own_has_a_token_of_our_own_and_ray_does_not_phone_home():
    inherited = {
        "PATH": "/bin",
        "TUNER_DB": "postgresql://u:secret@host/db",
        "RAY_ADDRESS": AT,
        "RAY_AUTH_TOKEN": "theirs",
        "RAY_AUTH_TOKEN_PATH": "/theirs",
        "RAY_TMPDIR": "/scratch",
    }
    first, second = environment("", inherited), environment("", inherited)
    assert first["RAY_AUTH_TOKEN"] not in ("theirs", second["RAY_AUTH_TOKEN"])
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert first["RAY_AUTH_MODE"] == "token"
    assert first["RAY_USAGE_STATS_ENABLED"] == "0"
    assert (first["PATH"], first["RAY_TMPDIR"]) == ("/bin", "/scratch")
    assert not {"TUNER_DB", "RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"} & first.keys()


def test_an_address_of_ray_client_is_refused(monkeypatch):
    monkeypatch.setattr(launcher, "find_spec", lambda name: name)
    with pytest.raises(UsageError, match="must be HOST:PORT of the cluster"):
        RayDriver("ray://10.0.0.1:10001")
