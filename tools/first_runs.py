# SPDX-License-Identifier: Apache-2.0
"""Runs the first steps of five users, times them, and prints the transcripts of docs/tutorial.md.

    PATH=build/release/bin:$PATH PYTHONPATH=build/release/python \\
        python3 tools/first_runs.py [NAME ...]

`python`: someone swaps the package in. `cpp`: someone starts a C++ project; needs an installed
`accelerate` and takes the time to compile. `notebook`: needs nbclient and ipykernel. `slurm`: needs
root, slurm-wlm and munge; starts a cluster of one machine. `hang`: someone looks for a hang.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 600
LOOP = re.search(r"```py\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
STUCK = """\
import time
from accelerate import Accelerator

accelerator = Accelerator()
if accelerator.process_index == 1:
    time.sleep(1000)
accelerator.wait_for_everyone()
"""
CELLS = [
    "def train():\n" + textwrap.indent(LOOP, "    ") + "    return model.weight.item()",
    "from accelerate import notebook_launcher\nnotebook_launcher(train, num_processes=2)",
]


class Transcript:
    """What a user types and sees; the time up to the first success."""

    def __init__(self, title: str, folder: pathlib.Path) -> None:
        self.folder = folder
        self.text = f"### {title}\n"
        self.seconds = 0.0

    def file(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def add(self, command: str, output: str, seconds: float, note: str = "") -> None:
        output = output.replace(f"{self.folder}/", "")
        lines = [*command.splitlines(), *output.rstrip().splitlines()]
        self.text += "\n```\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n"
        self.text += f"\n{seconds:.1f} s{note}\n"

    def run(self, command: str, counts: bool = True, **variables: str) -> None:
        """Types a shell command and waits for its end."""
        begin = time.monotonic()
        result = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=os.environ | variables, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT_SECONDS,
        )
        seconds = time.monotonic() - begin
        if result.returncode != 0:
            sys.exit(f"{command}: exit code {result.returncode}\n{result.stdout}")
        self.seconds += seconds if counts else 0
        self.add(f"$ {command}", result.stdout if counts else "", seconds,
                 "" if counts else " of compiling")


def python(transcript: Transcript) -> None:
    transcript.file("train.py", LOOP)
    transcript.run("python train.py")
    transcript.run("accelerate launch --num_processes 2 train.py")


def cpp(transcript: Transcript) -> None:
    transcript.run("accelerate new demo --language cpp")
    prefix = pathlib.Path(subprocess.check_output(["which", "accelerate"], text=True)).parents[1]
    build = f"cd demo && cmake -B build -DCMAKE_PREFIX_PATH={prefix} && cmake --build build"
    transcript.run(build, counts=False)
    transcript.run("cd demo && accelerate launch --num_processes 2 build/train")
    transcript.run("cd demo && accelerate launch --num_processes 2 build/train 20")


def notebook(transcript: Transcript) -> None:
    import nbformat
    from nbclient import NotebookClient

    sheet = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    begin = time.monotonic()
    NotebookClient(sheet, timeout=LIMIT_SECONDS, resources={
        "metadata": {"path": str(transcript.folder)}}).execute()
    transcript.seconds = time.monotonic() - begin
    for number, cell in enumerate(sheet.cells, 1):
        shown = "".join(
            output.get("text") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs)
        prompt = f"In [{number}]: "
        source = textwrap.indent(cell.source, " " * len(prompt))[len(prompt):]
        last = number == len(sheet.cells)
        transcript.add(prompt + source, shown, transcript.seconds if last else 0.0,
                       " for both cells" if last else "")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def cluster(folder: pathlib.Path):
    """Slurm on this machine, with files in `folder` only; gives the path of its configuration."""
    folder.chmod(0o755)
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    conf = folder / "slurm.conf"
    conf.write_text(textwrap.dedent(f"""\
        ClusterName=first
        SlurmctldHost={socket.gethostname()}(127.0.0.1)
        SlurmUser=root
        SlurmdUser=root
        AuthType=auth/munge
        CredType=cred/munge
        AuthInfo=socket={folder}/munge.socket
        SlurmctldPort={free_port()}
        SlurmdPort={free_port()}
        StateSaveLocation={folder}/state
        SlurmdSpoolDir={folder}/spool
        SlurmctldPidFile={folder}/ctld.pid
        SlurmdPidFile={folder}/slurmd.pid
        ProctrackType=proctrack/pgid
        TaskPlugin=task/none
        MpiDefault=none
        SwitchType=switch/none
        JobAcctGatherType=jobacct_gather/none
        ReturnToService=2
        NodeName=localhost NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
        PartitionName=all Nodes=localhost Default=YES State=UP
        """))
    (folder / "state").mkdir()
    munged = ["/usr/sbin/munged", "--foreground", "--force", f"--socket={folder}/munge.socket",
              f"--key-file={folder}/key", f"--pid-file={folder}/munge.pid",
              f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"]
    variables = os.environ | {"SLURM_CONF": str(conf)}
    with contextlib.ExitStack() as stack:
        for command in (munged, ["/usr/sbin/slurmctld", "-D"],
                        ["/usr/sbin/slurmd", "-D", "-N", "localhost"]):
            process = stack.enter_context(subprocess.Popen(
                command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
            deadline = time.monotonic() + 10
            while command is munged and not (folder / "munge.socket").exists():
                if time.monotonic() > deadline:
                    sys.exit("munged does not start")
                time.sleep(0.1)
        ready = ["/usr/bin/srun", "true"]
        deadline = time.monotonic() + 60
        while subprocess.run(ready, env=variables, capture_output=True, timeout=60).returncode:
            if time.monotonic() > deadline:
                sys.exit("Slurm does not start")
            time.sleep(0.5)
        yield conf


def slurm(transcript: Transcript) -> None:
    transcript.file("train.py", LOOP)
    with tempfile.TemporaryDirectory() as name, cluster(pathlib.Path(name)) as conf:
        transcript.run("srun --ntasks=2 python train.py", SLURM_CONF=str(conf))


def hang(transcript: Transcript) -> None:
    transcript.file("stuck.py", STUCK)
    begin = time.monotonic()
    command = "accelerate launch --num_processes 2 stuck.py"
    with subprocess.Popen(command.split(), cwd=transcript.folder, text=True,
                          stderr=subprocess.PIPE) as job:
        said = ""
        while "time.sleep(1000)" not in said:
            line = job.stderr.readline()
            if not line:
                sys.exit(f"{command} ended:\n{said}")
            said += line
        transcript.seconds = time.monotonic() - begin
        transcript.add(f"$ {command}", said, transcript.seconds, " until the report")
        transcript.run(f"accelerate doctor --job {job.pid}")
        job.send_signal(signal.SIGINT)
        job.stderr.read()


PATHS = {
    "python": ("Python: swap the package in", python),
    "cpp": ("C++: start a project", cpp),
    "notebook": ("Notebook", notebook),
    "slurm": ("Cluster with Slurm", slurm),
    "hang": ("Find a hang", hang),
}

for name in sys.argv[1:] or PATHS:
    title, path = PATHS[name]
    with tempfile.TemporaryDirectory() as folder:
        transcript = Transcript(title, pathlib.Path(folder))
        path(transcript)
        print(transcript.text, flush=True)
        print(f"{name}: {transcript.seconds:.1f} s", file=sys.stderr)
