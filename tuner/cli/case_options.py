"""The options of ``predict`` and ``check``: a configuration on any cluster."""

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from tuner.cli.options import (
    PLACE,
    SPACE,
    Database,
    Json,
    QuestionAsked,
    QuestionFile,
    option,
)

MANY = "Many cases"


PREDICTIONS = "What predictions rest on"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseAsked(QuestionAsked):
    """Settings of one question that are predicted, as they were written."""

    dry_runs: Annotated[
        str,
        option(
            "auto|all|none",
            "What is dry-run where no dry run is kept. auto: of a model without any, the"
            " layouts that most cases ask for, 6 dry runs at most. all: every layout."
            " none: nothing. Other memory is by arithmetic.",
            PREDICTIONS,
        ),
    ] = "auto"
    settings: Annotated[
        str | None,
        option(
            "KNOB=VALUE,...",
            "Settings, such as sharding=full_shard,micro_batch_size=2. Knobs left out have"
            " their default; gradient_accumulation_steps follows from the global batch.",
            SPACE,
        ),
    ] = None
    json: Json = False
    db: Database = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictAsked(CaseAsked):
    """Options of ``tuner predict``: a file of cases, or one case as in ``tuner probe``."""

    cases: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Answer the cases of this file, one JSON object on each line; - is stdin. The"
            " options of a single case are not taken then.",
            rich_help_panel=MANY,
        ),
    ] = None
    question_file: QuestionFile = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAsked(CaseAsked):
    """Options of ``tuner check``: a file, and what it does not say."""

    file: Annotated[str, Argument(metavar="FILE", help="The configuration file.")]
    format_name: Annotated[
        str | None,
        Option(
            "--format",
            metavar="accelerate|trainer|deepspeed|nanotron|json",
            help="Whose file it is. By default told by its content.",
            rich_help_panel=PLACE,
        ),
    ] = None
