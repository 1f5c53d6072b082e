"""Small traces made by hand, of models whose every layer adds the same."""

SEGMENTS = (
    ("forward", "before"),
    ("forward", "layers"),
    ("loss", "after"),
    ("backward", "after"),
    ("backward", "layers reversed"),
    ("backward", "before"),
    ("optimizer", "after"),
)


def trace(layers, moments, *, sizes=(1, 2), counts=(1, 2), collectives=None, **more):
    """A trace as the program answers it.

    Args:
        layers: its depth.
        moments: told phase, part, depth, micro-batch size and accumulation; gives each
            moment's bytes by category, always as many.
        sizes: micro-batch sizes.
        counts: accumulation counts.
        collectives: told depth and accumulation.
        more: other fields.
    """
    steps = [
        {
            "accumulation": count,
            "segments": [
                {
                    "micro_batch": index,
                    "phase": phase,
                    "part": part,
                    "lines": _lines([moments(phase, part, layers, b, count) for b in sizes]),
                }
                for index in range(count)
                for phase, part in _parts(layers)
            ],
            "collectives": collectives(layers, count) if collectives else [],
        }
        for count in counts
    ]
    known = {
        "format": 2,
        "device": "cuda",
        "layers": layers,
        "micro_batch_sizes": list(sizes),
        "steps": steps,
        "block_bytes": 1000,
        "notes": [],
        "versions": {"torch": "2.13.0"},
        "seconds": 1.5,
    }
    return {**known, **more}


def linear_moments(phase, part, depth, size, accumulation):
    """A model of 100 bytes a layer, whose layers keep 10 bytes of each sequence for backward."""
    held = {"parameters": 100 * depth, "optimizer_state": 200 * depth}
    name, _, number = part.partition(" ")
    kept = int(number) + 1 if name == "layer" else (0 if part == "before" else depth)
    if phase == "optimizer":
        return [{**held, "gradients_sharded": 100 * depth, "temporaries": 50 * depth}]
    gradients = 100 * (depth - kept) if phase == "backward" else 100 * depth * (accumulation > 1)
    base = {**held, "gradients_sharded": gradients, "activations": 10 * size * kept}
    return [{**base, "logits_and_loss": 3000 * size if phase == "loss" else 0}]


def _parts(layers):
    found = []
    for phase, part in SEGMENTS:
        numbers = range(layers) if part == "layers" else reversed(range(layers))
        names = [f"layer {i}" for i in numbers] if part.startswith("layers") else [part]
        found += [(phase, name) for name in names]
    return found


def _lines(at_sizes):
    return [
        {
            "bytes": [sum(moment.values()) for moment in line],
            "categories": {name: [moment[name] for moment in line] for name in line[0]},
        }
        for line in zip(*at_sizes, strict=True)
    ]
