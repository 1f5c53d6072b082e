"""Shell commands of the documentation that no test of it runs as they are shown, and why not.

A rule is a page, or ``*`` for all, a pattern that the whole command matches, and the reason.
Commands of ``tuner`` are read by the command line in any case: their options exist.
"""

import re
from typing import NamedTuple


class Rule(NamedTuple):
    """Why commands are not run."""

    page: str
    pattern: str
    reason: str


GPUS = "needs GPUs"
MINUTES = (
    "probes for a minute or more; tests/process/cli/test_end_to_end.py runs it with a tiny model"
)
TINY = "imports torch in every rank; tests/process/cli/test_end_to_end.py probes a tiny model"
LASTS = "does not end; tests/process/cli/test_serve.py and test_worker.py run it"
ENGINE = (
    "needs a container engine; tests/system/docs/test_compose.py reads it against the compose file"
)
OUTSIDE = "needs a machine or a network that tests do not have"
EXAMPLE = "is the reader's own program or file"
WAITS = "waits for workers of a service; tests/process/cli/test_remote.py runs one with them"

NOT_RUN = (
    Rule("*", r"make (suggest|test)", MINUTES),
    Rule("*", r"pip install .*", "installs; tests are run in what is installed"),
    Rule("*", r"tuner suggest .*--cluster local .*", GPUS),
    Rule(
        "docs/scripts.md",
        r"sbatch .*",
        "needs Slurm and GPUs: tests/system/slurm/test_script.py runs one on CPU ranks",
    ),
    Rule("*", r"tuner suggest --model stories15m .*--max-probes \d+\b.*", MINUTES),
    Rule("*", r"tuner probe --model stories15m .*", TINY),
    Rule("*", r"tuner suggest --model bert/config.json .*", EXAMPLE),
    Rule("*", r"tuner check .*", "checks the reader's own file: tests/unit/cli/test_check.py"),
    Rule("*", r"tuner calibrate( --cluster cpu:2)?", "measures for two minutes"),
    Rule("*", r"tuner doctor --run", "trains replicas for minutes: tests/unit/cli/test_doctor.py"),
    Rule("*", r"tuner (serve|worker)( --db sqlite:///studies.db| --pool h100)?( &)?", LASTS),
    Rule(
        "*", r"tuner worker (--slurm|--launcher) .*", "needs Slurm, or a Ray cluster of one's own"
    ),
    Rule("*", r"tuner suggest --server .*", WAITS),
    Rule("*", r"tuner studies cancel \S+ --server https://tuner.example.org", WAITS),
    Rule(
        "*",
        r"tuner db upgrade --db postgresql:.*",
        "needs a PostgreSQL: tests/system/docs/test_compose.py",
    ),
    Rule("*", r"tuner .* \.\.\. .*", "leaves out what was said before"),
    Rule("*", r"tuner predict --model config.json --task image_text_to_text .*", EXAMPLE),
    Rule(
        "*",
        r"tuner studies delete \S+",
        "other commands show the study: tests/unit/cli/test_studies.py deletes one",
    ),
    Rule("*", r"tuner mcp .*", "speaks to a client: tests/process/cli/test_mcp.py has one"),
    Rule("*", r"tuner rehearse .*", "needs torch for CUDA: tests/cuda/test_rehearsal.py runs it"),
    Rule(
        "*",
        r"tuner (suggest|probe) .*--fidelity rehearsed.*",
        "needs torch for CUDA: tests/cuda/test_end_to_end.py runs it",
    ),
    Rule("*", r"docker .*", ENGINE),
    Rule("*", r"kubectl .*", OUTSIDE),
    Rule(
        "docs/deploy.md",
        r"python3 -m venv /opt/tuner|export (PATH|TUNER_DB)=.*|cp examples/deploy/.*",
        "writes outside",
    ),
    Rule("docs/deploy.md", r"cp .env.example .env .*", ENGINE),
    Rule(
        "docs/schedulers.md",
        r"TUNER_URL=.*ask-tuner.sh .*",
        "tests/system/examples/test_pages.py does",
    ),
    Rule(
        "docs/quickstart.md",
        r"accelerate launch .* train.py|torchrun .*|sh torchrun.sh .*",
        EXAMPLE,
    ),
)


def why_not(command):
    """The rule by which a command is not run; ``None`` if it is."""
    for rule in NOT_RUN:
        if rule.page in ("*", command.page) and re.fullmatch(rule.pattern, command.text, re.S):
            return rule
    return None
