"""The least that a step takes by what was timed, and its computing alone; plain arithmetic."""

from collections.abc import Mapping, Sequence

# Timed steps of each accumulation count before the look at them: one alone may be slow by accident.
LOOK_STEPS = 2


def least_s(times_s: Mapping[int, Sequence[float]], accumulation: int) -> float:
    """Seconds that an optimizer step of ``accumulation`` micro-batches takes at least.

    That of the shortest step with the most micro-batches that were run; where those are fewer,
    with the line through two counts, as steep as the steps at least make it.
    """
    few, many = min(times_s), max(times_s)
    longest_s = min(times_s[many])
    if many >= accumulation or few == many:
        return longest_s
    each_s = max(0.0, longest_s - max(times_s[few])) / (many - few)
    in_proportion_s = longest_s * accumulation / many
    return min(longest_s + (accumulation - many) * each_s, in_proportion_s)


def computing(step: Mapping[str, float], copies: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each phase of a step without its copies; noise takes nothing below half."""
    return {
        phase: max(seconds - copies.get(phase, 0.0), seconds / 2) for phase, seconds in step.items()
    }
