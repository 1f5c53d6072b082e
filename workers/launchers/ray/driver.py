"""The process that speaks to Ray for a worker.

    python -P -m workers.launchers.ray.driver [--address HOST:PORT]

It connects to the cluster, or starts one of this machine alone, and says so in a line of JSON; then
it answers each line of its standard input with one. It ends with its input, and Ray ends what it
has started there. Ray takes signals, prints, and ends a process whose cluster is gone: this one
has nothing to lose by that.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import ray
from ray.exceptions import AuthenticationError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workers.launchers.base import Job
from workers.launchers.ray.job import Node, NotPlacedError, PlacedJob, alive, why
from workers.launchers.ray.node import facts
from workers.launchers.site import Facts

# Seconds for a connection to the cluster.
REACH_S = 10.0
# Seconds for a command of Ray's, which waits for its cluster for 40.
OPEN_CHECK_S = 60.0
# Seconds for what nodes say of themselves: a process is started on each, and a driver may wake its
# GPUs.
FACTS_S = 20.0

Answer = dict[str, Any]


class RefusedError(Exception):
    """The cluster is not one to be used; the text says what must be."""


class Driver:
    def __init__(self) -> None:
        self._jobs: dict[int, PlacedJob] = {}
        # what the nodes on which jobs are placed say of themselves (Facts), by their ids
        self._used: dict[str, Answer] = {}

    def answer(self, request: Answer) -> Answer:
        job = self._jobs.get(request.get("run", 0))
        try:
            match request["do"]:
                case "nodes":
                    return self._nodes()
                case "start":
                    self._start(request)
                case "look" if job is None:
                    return {"error": "the connection to Ray was lost, and its ranks with it"}
                case "look" if job is not None:
                    known = [Facts.from_dict(self._used[n]) for n in job.nodes if n in self._used]
                    found = job.look(feed=request["feed"])
                    devices = [one.devices for one in known] if len(known) == len(job.nodes) else []
                    return {**found, "devices": devices}
                case "stop" if job is not None:
                    job.stop()
                case "close" if job is not None:
                    del self._jobs[request["run"]]
                    job.close()
        except NotPlacedError as error:
            return {"error": str(error)}
        except RayError as error:
            return {"error": f"Ray: {why(error)}"}
        return {}

    def _start(self, request: Answer) -> None:
        if not self._used:
            self._nodes()
        nodes = alive()
        there = [nodes[node] for node in self._used if node in nodes]
        job = Job.from_dict(request["job"])
        self._jobs[request["run"]] = PlacedJob(job, request["program"], there)

    def _nodes(self) -> Answer:
        """Asks nodes for what they have: of those that jobs are placed on, and why not on others.

        A node that cannot be asked, or has another tuner, is of no use.
        """
        nodes = alive()
        asked = {_ask(node): node for node in nodes.values()}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=FACTS_S)
        ours = metadata.version("tuner")
        found: dict[str, Answer] = {}
        left_out = {asked[ref].address: f"it did not answer within {FACTS_S:.0f} s" for ref in late}
        for ref in done:
            node = asked[ref]
            try:
                said = ray.get(ref)
            except RayError as error:
                left_out[node.address] = why(error)
                continue
            if said["version"] == ours:
                found[node.id] = said["facts"]
            else:
                left_out[node.address] = f"it has tuner {said['version']}, and {ours} is here"
        self._used = {node: found[node] for node in alike(found)} if found else {}
        for other in found.keys() - self._used.keys():
            left_out[nodes[other].address] = "it is of another kind than those that are used"
        return {"nodes": [*self._used.values()], "left_out": left_out}


def _ask(node: Node) -> Any:
    there = NodeAffinitySchedulingStrategy(node.id, soft=False)
    task = ray.remote(facts).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return task.remote(node.gpus)


def alike(facts_by_node: Mapping[str, Answer]) -> list[str]:
    """The largest group of nodes of one kind, counted in GPUs, or in nodes where there are none.

    A job's ranks are all of one kind, and what is judged before it is started must be what it
    is started on.
    """
    groups: dict[Any, list[str]] = {}
    for node, said in sorted(facts_by_node.items()):
        machine = said["machine"]
        gpus = tuple((gpu["name"], gpu["memory_mib"]) for gpu in machine["gpus"])
        groups.setdefault((gpus, machine["processor"], machine["cores"]), []).append(node)
    largest = max(groups, key=lambda kind: (len(groups[kind]) * len(kind[0]), len(groups[kind])))
    return groups[largest]


def connect(address: str) -> str:
    """Connects to a cluster, or start one on this machine's loopback interface; its address."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        # does anything listen there? Ray tries for minutes, and does not say so
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
        except (OSError, OverflowError) as error:
            raise RefusedError(f"is not there: {error}") from error
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            configure_logging=False,
            **({} if address else {"include_dashboard": False}),
        )
    except (AuthenticationError, ConnectionError) as error:
        raise RefusedError(
            f"is not there, or has another token than there is here ({why(error)})"
        ) from error
    except (RuntimeError, ValueError, RayError) as error:
        raise RefusedError(f"cannot be used: {why(error)}") from error
    found = str(ray.get_runtime_context().gcs_address)
    if not address:
        return found
    # a cluster that answers somebody without a token is nothing to be used
    without = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH_")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ray.scripts.scripts", "health-check", "--address", found],
        env={**without, "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        timeout=OPEN_CHECK_S,
        check=False,
    )
    if done.returncode == 0:
        raise RefusedError(
            "must be a cluster with token authentication (RAY_AUTH_MODE=token on all of its"
            " nodes): this one runs whatever anybody on its network sends"
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="", help="of a cluster; else one is started")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints is no answer
    try:
        address = connect(options.address)
    except RefusedError as error:
        print(json.dumps({"refused": str(error)}), file=answers)
        return 1
    print(json.dumps({"address": address, "ray": ray.__version__}), file=answers)
    driver = Driver()
    for line in sys.stdin:
        print(json.dumps(driver.answer(json.loads(line))), file=answers)
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
