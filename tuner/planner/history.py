"""What earlier studies have tried. Nothing is read of them yet."""

from typing import TYPE_CHECKING

from tuner.study import Study

if TYPE_CHECKING:
    from tuner.search.trials import Past


def past_of(study: Study) -> "Past | None":
    """What earlier studies have tried; ``None`` where there is nothing."""
    return None
