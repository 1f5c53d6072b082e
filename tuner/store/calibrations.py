"""Calibrations: their rows, and the one that holds for a cluster."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import cache

from sqlalchemy import case, select
from sqlalchemy.orm import Session

from tuner.cluster import Cluster
from tuner.cost.calibration import Calibration, hardware_key
from tuner.store.clock import clock
from tuner.store.tables import CalibrationRow

log = logging.getLogger(__name__)

MOST_LOOKED_AT = 5
"""Calibrations that are read until one is of this version's format."""


def read_calibration(
    session: Session, cluster: Cluster, versions: Mapping[str, str]
) -> Calibration | None:
    """The newest of such devices with this release of torch; of clusters of this size first.

    None of another format: the devices are as if they had not been measured, which is said once.
    """
    like = [CalibrationRow.hardware == hardware_key(cluster)]
    if torch := versions.get("torch"):
        like.append(CalibrationRow.torch == torch)
    same_size = case(
        (
            (CalibrationRow.gpus_per_node == cluster.gpus_per_node)
            & (CalibrationRow.nodes == cluster.nodes),
            0,
        ),
        (CalibrationRow.gpus_per_node == cluster.gpus_per_node, 1),
        else_=2,
    )
    newest = select(CalibrationRow).where(*like).order_by(same_size, CalibrationRow.id.desc())
    rows = session.scalars(newest.limit(MOST_LOOKED_AT)).all()
    for row in rows:
        with suppress(ValueError, KeyError, TypeError):  # another version's
            return Calibration.from_dict(row.record)
    if rows:
        _warn_once(cluster.gpu.name)
    return None


@cache
def _warn_once(name: str) -> None:
    """That there are rates, and none of this version; a study is read often."""
    log.warning(
        "the rates of %s were measured by another version and are not used: run tuner calibrate",
        name,
    )


def keep_calibration(session: Session, calibration: Calibration) -> None:
    """Keep rates beside earlier ones."""
    row = CalibrationRow(
        hardware=calibration.hardware,
        torch=calibration.torch,
        nodes=calibration.nodes,
        gpus_per_node=calibration.gpus_per_node,
        record=calibration.as_dict(),
        created_at=clock(session),
    )
    session.add(row)
