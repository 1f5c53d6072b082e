"""``tuner models`` and ``tuner gpus``: the names that there are, with what is known of each."""

from tuner.cli.errors import print_json
from tuner.text import size_text, three_digits

# Of a GPU, of what is listed.
RATES = ("memory_bytes_per_s", "intra_node_bytes_per_s", "inter_node_bytes_per_s")


def list_models(part: str = "", json: bool = False) -> int:
    from tuner.cli.console import print_rows
    from tuner.client.values import listed_models

    listed = listed_models(part)
    if json:
        print_json({"models": listed})
    elif listed:
        rows = [
            (
                one["name"],
                one["model_type"],
                _billions(one["parameters"]),
                _billions(one["active_parameters"]),
                str(one["layers"]),
                f"{one['longest_sequence']:,}",
            )
            for one in listed
        ]
        heads = ("model", "type", "billion", "active", "layers", "longest")
        print_rows(heads, rows, "billion,active,layers,longest")
    return 0 if listed else 1


def _billions(parameters: int | None) -> str:
    return "-" if parameters is None else three_digits(parameters / 1e9)


def list_gpus(part: str = "", json: bool = False) -> int:
    from tuner.cli.console import print_rows
    from tuner.client.values import listed_gpus

    found = listed_gpus(part)
    if json:
        print_json({"gpus": found})
    else:
        rows = [
            (one["name"], size_text(one["memory_bytes"]),
             f"{one['bf16_flops_per_s'] / 1e12:.0f}" if one["bf16_flops_per_s"] else "-",
             *(f"{one[rate] / 1e9:.0f}" for rate in RATES))
            for one in found
        ]  # fmt: skip
        numbers = ("memory", "bf16\nTFLOP/s", "memory\nGB/s", "in node\nGB/s", "beyond\nGB/s")
        if rows:
            print_rows(("gpu", *numbers), rows, ",".join(numbers))
    return 0 if found else 1
