"""A real Slurm of two nodes on this machine's loopback, from the distribution's packages: no accounting, no control groups."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")

CONFIGURATION = """\
ClusterName=study
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmctldTimeout=5
SlurmdTimeout=5
KillWait=5
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first_port} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second_port} CPUs=2
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Why no cluster can be started here, None where one can."""
    os.environ["PATH"] += ":/usr/sbin"  # where the daemons are, which a user's PATH may leave out
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        return f"{', '.join(missing)} not found: apt-get install slurm-wlm munge"
    return None if os.getuid() == 0 else "Slurm's daemons run as root, and this is another user"


class SlurmCluster:
    """Nodes n1 and n2, two CPUs each; `variables` are what Slurm's commands need to find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[int] = []

    def start(self) -> None:
        """Start the daemons and wait until both nodes are idle."""
        munge = self.folder / "munge"
        munge.mkdir(mode=0o700, parents=True)
        (self.folder / "state").mkdir()
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        controller, first, second = _free_ports(3)
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=socket.gethostname().split(".")[0],
                folder=self.folder,
                controller_port=controller,
                first_port=first,
                second_port=second,
            )
        )
        if int(self._run("slurmd", "-V").split()[-1].split(".")[0]) >= 24:  # else it does not start where none are mounted
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        files = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        self._run("munged", "--force", f"--socket={munge / 'socket'}", *files)
        self._run("slurmctld", "-c", "-i")
        for node in ("n1", "n2"):
            self.start_node(node)

    def start_node(self, node: str) -> None:
        """Start the daemon of a node, also of one that was killed, and wait until the node is idle."""
        self._run("slurmd", "-N", node)
        self.wait_for(node, "idle")

    def wait_for(self, node: str, state: str, seconds: float = 30) -> None:
        """Wait until Slurm says that a node is in a state."""
        end = time.monotonic() + seconds
        while self._run("sinfo", "--noheader", f"--nodes={node}", "--format=%T").strip() != state:
            assert time.monotonic() < end, self._run("sinfo") + self.log()
            time.sleep(0.2)

    def queue(self) -> list[str]:
        """What is in the queue: id, name, state and node of each job."""
        return self._run("squeue", "--noheader", "--array", "--format=%i %j %T %N").splitlines()

    def log(self) -> str:
        """What the controller has said so far."""
        return (self.folder / "slurmctld.log").read_text()

    def command(self, *arguments: str) -> str:
        """Run one of Slurm's commands."""
        return self._run(*arguments)

    def hurry(self) -> None:
        """Let jobs that were put back into the queue start now, for which Slurm waits two minutes."""
        for line in self._run("squeue", "--noheader", "--array", "--states=PENDING", "--format=%i %r").splitlines():
            job, reason = line.split(maxsplit=1)
            if reason == "BeginTime":
                self._run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def kill_node(self, node: str) -> None:
        """SIGKILL everything of a node at once: its daemon, the job steps and what they run, as when its power fails."""
        doomed = {int((self.folder / f"{node}.pid").read_text())}
        for process in _processes(f"SLURMD_NODENAME={node}"):
            doomed |= {process, _parent(process)} if _is_step(_parent(process)) else {process}
        for process in doomed:
            _kill(process)

    def stop(self) -> None:
        """End all daemons and whatever their jobs left."""
        for process in _processes(f"SLURM_CONF={self.folder / 'slurm.conf'}"):
            _kill(process)
        pid = self.folder / "munge" / "pid"
        if pid.exists():
            _kill(int(pid.read_text()))

    def _run(self, *arguments: str) -> str:
        environment = os.environ | self.variables
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _processes(variable: str) -> list[int]:
    """The processes that have a variable in their environment, this one left out."""
    actual = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{variable}\0".encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                actual.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while it was looked at, or is another user's
    return actual


def _parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return 0


def _is_step(process: int) -> bool:
    try:
        return b"slurmstepd" in Path(f"/proc/{process}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
