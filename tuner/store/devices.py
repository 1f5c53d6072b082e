"""Which attempt holds which devices: nobody else has one until the attempt has ended.

Every function works inside a writing transaction of the caller's.
"""

from collections.abc import Collection

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tuner.store.tables import AttemptRow, DeviceRow


def is_any_held(connection: Connection, devices: Collection[str]) -> bool:
    """Whether an attempt has one of the devices."""
    if not devices:
        return False
    held = select(DeviceRow.device).where(DeviceRow.device.in_(devices)).limit(1)
    return connection.execute(held).first() is not None


def take(connection: Connection, attempt_id: int, devices: Collection[str]) -> bool:
    """Give a new attempt its devices; ``False`` if one is held, which ends the transaction."""
    if not devices:
        return True
    # In one order, so that no two wait for each other.
    rows = [{"device": device, "attempt_id": attempt_id} for device in sorted(devices)]
    try:
        connection.execute(insert(DeviceRow), rows)
    except IntegrityError:  # another was quicker
        return False
    return True


def free(session: Session, attempt: AttemptRow) -> None:
    """Let others have the devices of an attempt that ends."""
    if attempt.devices:
        session.execute(delete(DeviceRow).where(DeviceRow.attempt_id == attempt.id))
