"""The compose file, the image, and what docs/deploy.md shows: all that they name exists.

No container is started: what is checked is that commands, options, modules, files, variables,
ports and paths are this project's own, and that nothing runs with more rights than it needs.
"""

import configparser
import re
import tomllib
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from api.ops import Metrics
from api.settings import PREFIX, Settings
from tests.system.docs.command_line import known_variables, parsed
from tuner.core.measurement import Outcome
from tuner.core.study import StudyState
from tuner.store.figures import Figures

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGE = (ROOT / "docs" / "deploy.md").read_text()
PORT = Settings.model_fields["port"].default
IS_SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|KEY")
HARDENED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
CONFINED = {
    "User": "tuner",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "RestrictNamespaces": "yes",
    "UMask": "0077",
}


def instructions():
    """The Dockerfile's, each with its arguments in one line."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    whole = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in whole if line.strip()]


def of(instruction):
    return [arguments for name, arguments in instructions() if name == instruction]


def test_no_secret_has_a_default():
    text = (ROOT / "docker-compose.yml").read_text()
    used = dict(re.findall(r"\$\{(\w+)(:?[-?]?)", text))
    assert {name for name in used if IS_SECRET.search(name)} == {"POSTGRES_PASSWORD"}
    for name, how in used.items():
        assert how == (":?" if IS_SECRET.search(name) else ":-"), name
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if IS_SECRET.search(variable) or "://" in value:
                assert "${POSTGRES_PASSWORD:?" in value, f"{name}: {variable}"


def test_what_is_installed_is_what_was_tested():
    """Each file by its hash, from wherever; and images that are not another one tomorrow."""
    locked = {}
    for path in (ROOT / "requirements").glob("*.txt"):
        said = path.read_text()
        assert "://" not in said
        for one in re.split(r"\n(?=\S)", said)[1:]:
            assert "--hash=sha256:" in one, one
            locked.update(re.findall(r"^([a-z0-9_.-]+)==([^\s+]+)", one, re.M | re.I))
    stated = re.findall(r"^([^#\s]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    stated = {re.sub("[._]", "-", name.lower()): version for name, version in stated}
    assert locked.items() >= {n: v for n, v in stated.items() if n in locked}.items()
    extras = PROJECT["project"]["optional-dependencies"]
    needed = PROJECT["project"]["dependencies"] + [
        one for extra in ("8bit", "peft", "postgres", "dev") for one in extras[extra]
    ]
    names = {re.sub("[._]", "-", re.split(r"[\[><=;]", one)[0].lower()) for one in needed}
    assert names <= locked.keys(), "make lock"
    backend = PROJECT["build-system"]["requires"]
    assert backend == [f"hatchling=={locked['hatchling']}"]
    installs = [line for line in of("RUN") if "pip install" in line]
    assert all("--require-hashes" in line for line in installs)
    assert re.search(r"^ARG PYTHON=3\.\d+\.\d+$", (ROOT / "Dockerfile").read_text(), re.M)
    for service in SERVICES.values():
        assert re.search(r":\d+\.\d+", service["image"]), service["image"]


def test_what_a_container_may_take_is_limited():
    for name, service in SERVICES.items():
        assert service["mem_limit"], name
        assert service["pids_limit"] > 0, name
        assert service["logging"]["options"]["max-size"], name


def test_every_setting_is_in_the_table_with_its_default():
    rows = dict(re.findall(r"^\| `(TUNER_\w+)` \| (.*?) \|", PAGE, flags=re.M))
    fields = {PREFIX + name.upper(): field for name, field in Settings.model_fields.items()}
    assert set(rows) == {*fields, "TUNER_LOG"}
    for name, field in fields.items():
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert float(rows[name]) == field.default, name


def test_every_metric_is_in_the_table():
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


def unit(name):
    """The service of a unit of systemd."""
    block = (ROOT / "examples" / "deploy" / f"tuner-{name}.service").read_text()
    found = configparser.ConfigParser()
    found.optionxform = str
    found.read_string(block)
    return found["Service"]


def test_services_name_what_exists_and_have_no_more_rights_than_they_need():
    assert set(SERVICES) == {"postgres", "migrate", "api", "worker", "worker-gpu"}
    assert of("ENTRYPOINT") == ['["tuner"]']
    assert of("EXPOSE") == [str(PORT)]
    # What cannot be written later is there from the beginning.
    assert any("compileall" in line for line in of("RUN"))
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
    for name in SERVICES.keys() - {"postgres"}:
        assert SERVICES[name]["image"] == f"tuner:{PROJECT['project']['version']}"
        # One builds it for all, and nobody asks a registry for it.
        assert ("build" in SERVICES[name]) is (name == "migrate")
        assert SERVICES[name]["pull_policy"] == "never"
        parsed(SERVICES[name]["command"])
        assert SERVICES[name]["user"] == user
        assert set(SERVICES[name]["environment"]) <= known_variables()
        url = SERVICES[name]["environment"]["TUNER_DB"]
        who, rest = url.removeprefix("postgresql://").split(":", 1)
        assert who == postgres["POSTGRES_USER"]
        assert rest.rsplit("@", 1)[1] == f"postgres:5432/{postgres['POSTGRES_DB']}"
    assert COMPOSE["networks"]["database"]["internal"] is True
    for name in ("serve", "worker"):
        program, *arguments = unit(name)["ExecStart"].split()
        assert Path(program).name in PROJECT["project"]["scripts"]
        assert arguments == [name]
        parsed(arguments)
        assert unit(name).keys() >= {"LimitNOFILE", "MemoryMax", "TasksMax"}
        assert {key: unit(name)[key] for key in CONFINED} == CONFINED
    assert unit("worker")["OOMPolicy"] == "continue"
    # Each of them would hide the GPUs.
    assert not unit("worker").keys() & {"PrivateDevices", "ProtectClock", "DeviceAllow"}
