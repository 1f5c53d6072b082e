"""A real Slurm of two nodes on this machine, with keys, ports and folders of its own.

Slurm and munge have to be installed (``apt-get install slurm-wlm munge``), and be started as root.
There is no accounting.
"""

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
START_S = 120.0
CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
SlurmdSpoolDir={root}/spool-%n
StateSaveLocation={root}/state
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=1,bf_interval=2
SlurmdParameters=config_overrides
SlurmdTimeout=10
ReturnToService=2
KillWait=2
InactiveLimit=0
MinJobAge=300
PartitionName=test Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=NO
"""
NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN\n"


def missing():
    """Why there can be no Slurm here; empty if there can."""
    if os.getuid() != 0:
        return "Slurm's daemons are started as root"
    path = f"{os.environ['PATH']}:/usr/sbin"
    names = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    return f"{', '.join(names)} is not installed (slurm-wlm, munge)" if names else ""


@dataclass(slots=True)
class SlurmCluster:
    """Daemons that run."""

    root: Path
    """Their folder."""
    environment: dict[str, str]
    """Of commands that mean this cluster."""
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name, *argv):
        """Start a daemon in the foreground."""
        with (self.root / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment
            )

    def start_node(self, name):
        """Start a node's daemon."""
        self.start(name, "/usr/sbin/slurmd", "-D", "-N", name)

    def cut_power(self, name):
        """All that runs on a node is gone at once: its daemon, and what that has started."""
        self.daemons[name].kill()
        self.daemons.pop(name).wait()
        conf = self.environment["SLURM_CONF"]
        tasks = [p for p in psutil.process_iter() if _variables(p, "SLURM_CONF") == conf]
        for task in tasks:
            if _variables(task, "SLURMD_NODENAME") == name:
                with suppress(psutil.NoSuchProcess):
                    steps = [one for one in task.parents() if one.name().startswith("slurmstepd")]
                    for one in (*steps, task):
                        one.kill()

    def run(self, *argv):
        """What a command of Slurm's prints."""
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout

    def wait_for(self, text, *argv, seconds=START_S):
        """Wait until a command prints this."""
        until, seen = time.monotonic() + seconds, ""
        while text not in seen:
            assert time.monotonic() < until, (argv, seen, self.logs())
            with suppress(subprocess.CalledProcessError):
                seen = self.run(*argv)
            time.sleep(0.1)

    def mend(self):
        """Have both nodes idle again, whatever was done to them."""
        for name in NODES:
            if name not in self.daemons:
                self.start_node(name)
        until = time.monotonic() + START_S
        while (seen := self.run("sinfo", "-h", "-o", "%T %D").strip()) != "idle 2":
            assert time.monotonic() < until, (seen, self.logs())
            with suppress(subprocess.CalledProcessError):  # that none is down
                self.run("scontrol", "update", f"nodename={','.join(NODES)}", "state=resume")
            time.sleep(0.2)

    def logs(self):
        """The ends of the daemons' logs."""
        return "\n".join(p.read_text()[-2000:] for p in sorted(self.root.glob("*.[lo][ou][gt]")))

    def stop(self):
        """End what runs, and the daemons, the first one last."""
        with suppress(subprocess.SubprocessError):
            self.run("scancel", "--quiet", "--user=root")
            self.mend()
        for name in reversed(list(self.daemons)):
            daemon = self.daemons.pop(name)
            daemon.terminate()
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@contextmanager
def slurm_cluster(root):
    """Two idle nodes."""
    root.chmod(0o755)
    (root / "state").mkdir()
    ports, host = free_ports(1 + len(NODES)), socket.gethostname().split(".")[0]
    text = CONFIGURATION.format(root=root, ports=ports, host=host)
    for name, port in zip(NODES, ports[1:], strict=True):
        text += NODE.format(name=name, host=host, port=port)
        (root / f"spool-{name}").mkdir()
    (root / "slurm.conf").write_text(text)
    key = root / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
    cluster = SlurmCluster(root, environment | {"SLURM_CONF": str(root / "slurm.conf")})
    with ExitStack() as stack:
        stack.callback(cluster.stop)
        cluster.start("munged", *munged(root))
        cluster.wait_for("MUNGE:", "munge", "-n", "-S", str(root / "munge.socket"))
        cluster.start("slurmctld", "/usr/sbin/slurmctld", "-D", "-i")
        for name in NODES:
            cluster.start_node(name)
        cluster.wait_for("idle 2", "sinfo", "-h", "-o", "%t %D")
        yield cluster


def _variables(process, name):
    try:
        return process.environ().get(name, "")
    except psutil.Error:
        return ""


def munged(root):
    """A munge daemon of its own, which needs none of the system's folders."""
    files = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
    files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
    return (
        "/usr/sbin/munged",
        "--foreground",
        "--force",
        *(f"--{option}={root / name}" for option, name in files.items()),
    )


def free_ports(count):
    """Ports of this machine that nobody listens to."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
