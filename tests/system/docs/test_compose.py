"""The compose file, the image, and what docs/deploy.md shows: all that they name exists.

No container is started: what is checked is that commands, options, modules, files, variables,
ports and paths are this project's own, and that nothing runs with more rights than it needs.
"""

import ast
import configparser
import re
import shlex
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from prometheus_client.parser import text_string_to_metric_families

from api.app import create_app
from api.ops import Metrics
from api.settings import PREFIX, Settings
from tests.postgresql import postgresql_server
from tests.system.docs import pages
from tests.system.docs.command_line import known_variables, parsed
from tuner.cli import main
from tuner.core.measurement import Outcome
from tuner.core.study import StudyState
from tuner.store import open_store
from tuner.store.figures import Figures
from workers.devices import default_lock_path
from workers.measuring.files import default_probes_folder

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGE = (ROOT / "docs" / "deploy.md").read_text()
PORT = Settings.model_fields["port"].default
IS_SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|KEY")
HARDENED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's, each with its arguments in one line."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    whole = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in whole if line.strip()]


def of(instruction: str) -> list[str]:
    return [arguments for name, arguments in instructions() if name == instruction]


def blocks(language: str = "") -> list[str]:
    """Blocks of code in docs/deploy.md."""
    return [one.text for one in pages.blocks("docs/deploy.md") if one.language == language]


def shown_commands() -> list[list[str]]:
    """Commands of ours and of Docker's in docs/deploy.md."""
    shown = [one.words for one in pages.commands("docs/deploy.md")]
    return [words for words in shown if words[0] in ("tuner", "docker")]


def without_profile(words: list[str]) -> list[str]:
    """A command of compose's without the profiles that it chooses."""
    if words[2] != "--profile":
        return words
    assert any(words[3] in service.get("profiles", ()) for service in SERVICES.values())
    return [*words[:2], *words[4:]]


def ours() -> list[str]:
    return [name for name, service in SERVICES.items() if "build" in service]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Paths that the service has."""
    url = f"sqlite:///{tmp_path_factory.mktemp('paths')}/s.db"
    with open_store(url) as store:
        return set(create_app(store, Settings()).openapi()["paths"])


# The compose file


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    used = dict(re.findall(r"\$\{(\w+)(:?[-?]?)", text))
    assert {name for name in used if IS_SECRET.search(name)} == {"POSTGRES_PASSWORD"}
    for name, how in used.items():
        assert how == (":?" if IS_SECRET.search(name) else ":-"), name
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if IS_SECRET.search(variable) or "://" in value:
                assert "${POSTGRES_PASSWORD:?" in value, f"{name}: {variable}"


def test_the_example_of_settings_is_complete_and_holds_no_secret() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert set(given) == used
    assert {name for name in given if IS_SECRET.search(name) and given[name]} == set()


def test_every_lasting_process_has_a_health_check_that_can_work(paths: set[str]) -> None:
    for name, service in SERVICES.items():
        if name == "migrate":
            continue
        how, program, *arguments = service["healthcheck"]["test"]
        assert how == "CMD"
        if program == "tuner":
            parsed(arguments)
        elif program == "python":
            ast.parse(arguments[-1])
            port, path = re.findall(r"http://127.0.0.1:(\d+)(/\w+)", arguments[-1])[0]
            assert int(port) == PORT
            assert path in paths
        else:
            assert program == "pg_isready"


# The image


def test_the_image_is_of_a_python_and_extras_that_are_supported() -> None:
    (version,) = [value for value in of("ARG") if value.startswith("PYTHON=")]
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(version.split("=")[1])
    (extras,) = re.findall(r"'\.\[(.*?)\]'", (ROOT / "Dockerfile").read_text())
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert "postgres" in extras.split(",")
    assert "tuner" in PROJECT["project"]["scripts"]


def test_what_the_image_is_built_from_reaches_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    sent = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in sent)
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    project = PROJECT["project"]
    needed = {*wheel["packages"], *wheel["force-include"], *project["license-files"]}
    copied = {arguments.split()[0] for arguments in of("COPY") if "--from" not in arguments}
    assert needed | {project["readme"], "pyproject.toml"} | copied - {"."} <= sent


# docs/deploy.md


def test_whatever_uses_the_database_is_stopped_before_it_is_changed() -> None:
    """And started again: with its profile, without which compose does not know it."""
    lasting = {name for name, one in SERVICES.items() if one.get("networks")} - {
        "postgres",
        "migrate",
    }
    for title in ("Backup", "Upgrade"):
        (section,) = re.findall(rf"^## {title}\n(.*?)^## ", PAGE, flags=re.M | re.S)
        commands = [line for line in section.splitlines() if line.startswith("docker compose ")]
        words = [shlex.split(line, comments=True) for line in commands]
        (stop,) = [one for one in words if "stop" in one]
        (start,) = [one for one in words if "up" in one]
        assert lasting <= set(stop), title
        profiles = {profile for name in lasting for profile in SERVICES[name].get("profiles", ())}
        for command in (stop, start):
            assert profiles <= set(command), title


@pytest.mark.xdist_group("postgresql")
def test_the_first_key_can_be_made_in_the_order_that_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In an empty database of PostgreSQL, which nothing migrates by itself."""
    text = PAGE.split("Before the deployments")[1]
    shown = re.findall(r"^```\n(.*?)^```$", text, flags=re.M | re.S)[0]
    with postgresql_server() as server:
        monkeypatch.setenv("TUNER_DB", server.get_uri())
        for line in shown.splitlines():
            _, *arguments = shlex.split(line, comments=True)
            assert main(arguments) == 0, f"{line}: {capsys.readouterr().err}"
    assert re.search(r"^tuner_[0-9a-f]{16}_", capsys.readouterr().out, flags=re.M)


def test_every_setting_is_in_the_table_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(TUNER_\w+)` \| (.*?) \|", PAGE, flags=re.M))
    fields = {PREFIX + name.upper(): field for name, field in Settings.model_fields.items()}
    assert set(rows) == {*fields, "TUNER_LOG"}
    for name, field in fields.items():
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert float(rows[name]) == field.default, name


def test_every_metric_is_in_the_table() -> None:
    figures = Figures(
        studies={StudyState.DONE: 1}, probes={}, attempts={}, outcomes={Outcome.OK: 1},
        probe_s={Outcome.OK: 1.0}, oldest_beat_s=0.0, devices_held=0, workers_living=0,
    )  # fmt: skip
    body, _ = Metrics(lambda: figures, version="1").text()
    families = text_string_to_metric_families(body.decode())
    exposed = {
        f"{one.name}_total" if one.type == "counter" else one.name
        for one in families
        if not one.name.startswith("process_")
    }
    shown = set(re.findall(r"^\| `(tuner_\w+)` \|", PAGE, flags=re.M))
    assert {name.removesuffix("_info") for name in shown} == {
        name.removesuffix("_info") for name in exposed
    }
    alerts = re.findall(r"tuner_[a-z_]+", PAGE.split("Worth an alert")[1])
    assert set(alerts) <= shown | {"tuner_outside"}


def manifests() -> list[dict[str, Any]]:
    (block,) = [block for block in blocks("yaml") if "apiVersion" in block]
    return list(yaml.safe_load_all(block))


def pods() -> list[dict[str, Any]]:
    found = [one["spec"] for one in manifests() if one["kind"] == "Deployment"]
    for one in found:
        labels = one["template"]["metadata"]["labels"]
        assert one["selector"]["matchLabels"] == labels
    return [one["template"]["spec"] for one in found]


def test_the_kubernetes_manifest_names_what_exists(paths: set[str]) -> None:
    for pod in pods():
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsUser"] == int(of("USER")[0].split(":")[0])
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            parsed(container["args"])
            assert {one["name"] for one in container["env"]} <= known_variables()
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["image"] in {SERVICES[name]["image"] for name in ours()}
            for probe in ("livenessProbe", "readinessProbe"):
                if "httpGet" in container.get(probe, {}):
                    assert container[probe]["httpGet"]["path"] in paths
                elif probe in container:
                    parsed(container[probe]["exec"]["command"][1:])
            mounted = {one["name"] for one in container["volumeMounts"]}
            assert mounted <= {one["name"] for one in pod["volumes"]}


def unit() -> configparser.SectionProxy:
    """The service of the unit of systemd."""
    (block,) = blocks("ini")
    found = configparser.ConfigParser()
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string(block)
    return found["Service"]


def test_what_the_unit_of_systemd_writes_it_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks, probes' folders and the database; all else is read-only, and homes are hidden."""
    service = unit()
    assert (service["ProtectSystem"], service["ProtectHome"]) == ("strict", "yes")
    assert service["PrivateTmp"] == "no"  # others' locks are there
    writable = [Path(path) for path in service["ReadWritePaths"].split()]
    writable += [Path("/var/lib") / service["StateDirectory"]]
    writable += [Path("/var/cache") / service["CacheDirectory"]]
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    variable, value = service["Environment"].split("=", 1)
    monkeypatch.setenv(variable, value)
    (shown,) = re.findall(r"^export TUNER_DB=sqlite:///(\S+)$", PAGE, flags=re.M)
    for path in (default_lock_path(), default_probes_folder(), Path(shown)):
        assert any(path.is_relative_to(folder) for folder in writable), path


def test_services_name_what_exists_and_have_no_more_rights_than_they_need() -> None:
    assert set(SERVICES) == {"postgres", "migrate", "api", "worker", "worker-gpu"}
    assert of("ENTRYPOINT") == ['["tuner"]']
    assert of("EXPOSE") == [str(PORT)]
    (user,) = of("USER")
    assert f"--uid {user.split(':')[0]} " in (ROOT / "Dockerfile").read_text()
    postgres = SERVICES["postgres"]["environment"]
    for name, service in SERVICES.items():
        assert service.get("profiles") == (["gpu"] if name == "worker-gpu" else None)
        assert {key: service[key] for key in HARDENED} == HARDENED
        assert all(int(number) > 0 for number in service["user"].split(":"))
        assert any(mount.split(":")[0] == "/tmp" for mount in service["tmpfs"])
        assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "ipc"}
        assert set(service["networks"]) <= set(COMPOSE["networks"])
        assert ("outside" in service["networks"]) is (name == "api")
        assert {one.split(":")[0] for one in service.get("volumes", [])} <= set(COMPOSE["volumes"])
        for other, waits in service.get("depends_on", {}).items():
            if waits["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], f"{name} waits for {other}"
            else:
                assert waits["condition"] == "service_completed_successfully"
                assert SERVICES[other]["command"] == ["db", "upgrade"]
    (published,) = SERVICES["api"]["ports"]
    options = parsed(SERVICES["api"]["command"]).params
    assert published.startswith("127.0.0.1:")
    assert int(published.rsplit(":", 1)[1]) == options["port"] == PORT
    assert options["require_keys"] is True
    for name in ours():
        assert SERVICES[name]["image"] == "tuner"
        parsed(SERVICES[name]["command"])
        assert SERVICES[name]["user"] == user
        assert set(SERVICES[name]["environment"]) <= known_variables()
        url = SERVICES[name]["environment"]["TUNER_DB"]
        who, rest = url.removeprefix("postgresql://").split(":", 1)
        assert who == postgres["POSTGRES_USER"]
        assert rest.rsplit("@", 1)[1] == f"postgres:5432/{postgres['POSTGRES_DB']}"
    assert COMPOSE["networks"]["database"]["internal"] is True
    program, *arguments = unit()["ExecStart"].split()
    assert Path(program).name in PROJECT["project"]["scripts"]
    parsed(arguments)


def test_dockers_commands_that_are_shown_exist() -> None:
    for words in shown_commands():
        if words[0] == "tuner":
            continue  # read in test_commands.py
        assert words[1] in ("compose", "network")
        words = without_profile(words)
        mentioned = [word for word in words[3:] if word in SERVICES]
        if words[2] == "run":
            assert mentioned == [words[4]]
            if arguments := words[5:]:
                parsed(arguments)
        elif words[2] in ("exec", "stop"):
            assert mentioned
