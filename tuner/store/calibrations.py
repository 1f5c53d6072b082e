"""Calibrations: their rows, and the one that holds for a cluster."""

from collections.abc import Mapping
from contextlib import suppress

from sqlalchemy import case, select
from sqlalchemy.orm import Session

from tuner.cluster import Cluster
from tuner.cost.calibration import Calibration, hardware_key
from tuner.store.clock import clock
from tuner.store.tables import CalibrationRow

MOST_LOOKED_AT = 5
"""Calibrations that are read until one is of this version's format."""


def read_calibration(
    session: Session, cluster: Cluster, versions: Mapping[str, str]
) -> Calibration | None:
    """The newest of such devices with this release of torch; of clusters of this size first.

    None of another format: the devices are as if they had not been measured.
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
    for row in session.scalars(newest.limit(MOST_LOOKED_AT)):
        with suppress(ValueError, KeyError, TypeError):  # another version's
            return Calibration.from_dict(row.record)
    return None


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
