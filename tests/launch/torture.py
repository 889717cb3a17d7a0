#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random faults against random jobs.

    torture.py --program BUILD/bin/accelerate [--seconds 60] [--seed N]
               [--cases N]

Starts jobs of 1 to 8 ranks on 1 to 3 hosts (network namespaces, where this user
may make them) and strikes them: kills, stops, streams that are closed from the
start, readers that leave, are slow or pause, full disks, low limits, cut links,
machines of elastic jobs that come late or go, strangers that speak garbage. Whatever happens, each job ends in bounded time, says why, leaves no process and no
temporary file, and every line that a worker had written is in its output and
its logs. A case that fails prints its seed; `--seed THAT --cases 1` runs it
again.
"""
import argparse
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

# Far more than any job needs, so that a loaded machine fails nothing.
END_LIMIT = 150
PORT = 29500

WORKER = r"""
import os, signal, sys, time, random
folder, seed = sys.argv[1], int(sys.argv[2])
rank = os.environ["RANK"]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
rng = random.Random(f"{seed} {rank} {attempt}")
if len(sys.argv) > 3:  # A job that saves and leaves when it is asked to.
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: os._exit(75))
elif rng.random() < 0.15:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if rng.random() < 0.3 and os.fork() == 0:
    os.setsid()
    os.execvp("sleep", ["sleep", "97"])
counts = [os.open(f"{folder}/{rank}.{attempt}.{s}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
          for s in (1, 2)]
sizes = rng.choice([[5, 60], [60, 200], [1, 30000]])
pause = rng.choice([0, 0, 0.002, 0.02])
for i in range(rng.choice([0, 3, 50, 400])):
    stream = rng.choice([1, 1, 2])
    line = f"<{rank} {attempt} {stream} {i} " + "x" * rng.randint(*sizes) + ">\n"
    data = line.encode()
    while data:
        data = data[os.write(stream, data):]
    os.write(counts[stream - 1], f"{i}\n".encode())
    if pause and rng.random() < 0.5:
        time.sleep(pause)
end = rng.random()
if end < 0.6:
    sys.exit(0)
if end < 0.75:
    # 2 says that nothing was started, 75 asks to be started again.
    sys.exit(rng.choice([*range(3, 75), *range(76, 100)]))
if end < 0.85:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(rng.choice([0.3, 1, 4]))
"""

LINE = re.compile(r"^(?:\[rank (\d+)\] )?<(\d+) (\d+) ([12]) (\d+) x*>$")


class Hosts:
    """Three hosts on one bridge; none where this user may not make them."""

    def __init__(self):
        self.prefix = f"t{os.getpid() % 1000000}"
        self.count = 0
        self.may_make = os.geteuid() == 0 and shutil.which("ip") is not None
        if not self.may_make:
            return
        bridge = f"{self.prefix}sw"
        script = f"ip netns add {bridge} && ip -n {bridge} link add br0 type bridge && " \
                 f"ip -n {bridge} link set br0 up"
        for host in range(3):
            own = self.name(host)
            script += f" && ip netns add {own} && ip -n {bridge} link add p{host} type veth " \
                      f"peer name eth0 netns {own} && ip -n {bridge} link set p{host} master " \
                      f"br0 up && ip -n {own} addr add {self.address(host)}/24 dev eth0 && " \
                      f"ip -n {own} link set eth0 up && ip -n {own} link set lo up"
        if subprocess.run(["sh", "-c", script], capture_output=True).returncode == 0:
            self.count = 3

    def name(self, host):
        return f"{self.prefix}h{host}"

    def address(self, host):
        return f"10.78.0.{host + 1}"

    def on(self, host, command):
        return ["nsenter", f"--net=/run/netns/{self.name(host)}", "unshare", "--uts", "sh", "-c",
                f'hostname node{host}; exec "$@"', "sh", *command]

    def link(self, host, state):
        subprocess.run(["ip", "-n", self.name(host), "link", "set", "eth0", state])

    def remove(self):
        if not self.may_make:
            return
        for name in [*(self.name(host) for host in range(3)), f"{self.prefix}sw"]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


class Reader(threading.Thread):
    """Reads a stream in one of the bad manners."""

    def __init__(self, file, manner, rng):
        super().__init__(daemon=True)
        self.file, self.manner, self.data = file, manner, b""
        self.left_at = rng.randint(1, 20000)
        self.start()

    def run(self):
        if self.manner == "paused":
            time.sleep(2.5)
        while True:
            part = os.read(self.file.fileno(), 3000 if self.manner == "slow" else 65536)
            self.data += part
            if not part:
                break
            if self.manner == "slow":
                time.sleep(0.002)
            if self.manner == "closed" and len(self.data) > self.left_at:
                break
        self.file.close()


def marked(mark):
    """Living processes of the job."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes() and \
                        "State:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def children_of(pid):
    try:
        return [int(c) for c in
                pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Case:
    def __init__(self, seed, program, hosts):
        self.seed, self.program, self.hosts = seed, program, hosts
        self.rng = random.Random(seed)
        self.problems = []
        self.mark = f"torture-{os.getpid()}-{seed}"
        self.told = []

    def run(self):
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            self.folder = pathlib.Path(folder)
            try:
                self.start()
                self.strike()
                self.wait()
                self.check()
            finally:
                self.clean()
        return self.problems

    def pick(self):
        rng = self.rng
        self.machines = rng.choice([1, 1, 1, 2, 3]) if self.hosts.count else 1
        self.local = rng.randint(1, 8 // self.machines)
        faults = ["none", "kill_worker", "stop_worker", "stop_supervisor", "signal", "signal",
                  "signal_both", "signal_group", "closed_streams", "kill_launcher",
                  "kill_supervisor", "low_files", "full_disk"]
        if self.machines > 1:
            faults += ["cut_link", "stranger", "stranger"]
        self.fault = rng.choice(faults)
        self.manner = rng.choice(["fast", "fast", "fast", "slow", "paused", "closed"])
        self.is_elastic = self.machines > 1 and rng.random() < 0.5
        if self.is_elastic:
            self.fault = rng.choice(["none", "late", "late_and_kill", "kill_launcher",
                                     "kill_supervisor", "cut_link", "signal", "preempt"])
        self.logs = self.fault == "full_disk" or rng.random() < 0.5
        self.restarts = rng.choice([0, 0, 0, 2])
        self.closed = set(rng.sample([0, 1, 2], rng.randint(1, 3))) \
            if self.fault == "closed_streams" else set()
        self.told = [f"{self.machines} machines", f"{self.local} ranks each",
                     " ".join([self.fault, *map(str, sorted(self.closed))]),
                     f"{self.manner} reader", f"{self.restarts} restarts",
                     "elastic" if self.is_elastic else "fixed"]

    def start(self):
        self.pick()
        rng = self.rng
        (self.folder / "tmp").mkdir()
        (self.folder / "counts").mkdir()
        (self.folder / "worker.py").write_text(WORKER)
        self.log_dir = self.folder / "logs"
        self.log_dir.mkdir()
        self.is_small = self.fault == "full_disk" and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", self.log_dir],
            capture_output=True).returncode == 0
        environment = dict(os.environ, TORTURE_MARK=self.mark, TMPDIR=str(self.folder / "tmp"),
                           ACCELERATE_JOB_TOKEN="a token of the torture run")
        limit = rng.randint(12, 60)
        self.jobs = []
        for machine in range(self.machines):
            if machine == self.machines - 1 and self.fault.startswith("late"):
                # Before and after the others have begun without it.
                time.sleep(rng.choice([0.2, 5, 6, 7]))
            command = [self.program, "launch", "--cpu", "--grace_seconds", "2",
                       "--num_processes", str(self.local * self.machines),
                       "--max_restarts", str(self.restarts)]
            if self.logs:
                command += ["--log_dir", str(self.log_dir)]
            if self.machines > 1:
                command += ["--main_process_ip", self.hosts.address(0), "--heartbeat_seconds", "5"]
                command += ["--num_machines", f"1:{self.machines}", "--join_timeout", "10"] \
                    if self.is_elastic else ["--num_machines", str(self.machines), "--machine_rank",
                                             str(machine), "--join_timeout", "30"]
            command += [sys.executable, "-S", "-E", str(self.folder / "worker.py"),
                        str(self.folder / "counts"), str(self.seed)]
            if self.is_elastic:
                command += ["saves"]
            if self.fault == "low_files":
                command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *command]
            if self.closed:
                closing = " ".join(f"{stream}>&-" for stream in sorted(self.closed))
                command = ["sh", "-c", f'exec "$@" {closing}', "sh", *command]
            if self.machines > 1:
                command = self.hosts.on(machine, command)
            job = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   start_new_session=True)
            job.out = Reader(job.stdout, self.manner, rng)
            job.err = Reader(job.stderr, "fast", rng)
            self.jobs.append(job)

    def strike(self):
        rng = self.rng
        time.sleep(rng.choice([0, 0.05, 0.2, 0.5, 1.5]))
        job = rng.choice(self.jobs)
        supervisor = next(iter(children_of(job.pid)), None)
        workers = children_of(supervisor) if supervisor else []
        victim = rng.choice(workers) if workers else None
        try:
            if self.fault == "signal":
                job.send_signal(rng.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP,
                                            signal.SIGQUIT]))
            elif self.fault == "signal_both" and supervisor:
                number = rng.choice([signal.SIGTERM, signal.SIGHUP])
                job.send_signal(number)
                os.kill(supervisor, number)
            elif self.fault == "signal_group":
                os.killpg(job.pid, rng.choice([signal.SIGTERM, signal.SIGINT]))
            elif self.fault == "preempt":
                job.send_signal(signal.SIGUSR1)
            elif self.fault == "late_and_kill":
                # The machine before the one that is being welcomed.
                self.jobs[-2].kill()
            elif self.fault == "kill_launcher":
                job.kill()
            elif self.fault == "kill_supervisor" and supervisor:
                os.kill(supervisor, signal.SIGKILL)
            elif self.fault == "kill_worker" and victim:
                os.kill(victim, signal.SIGKILL)
            elif self.fault in ("stop_worker", "stop_supervisor"):
                target = victim if self.fault == "stop_worker" else supervisor
                if target:
                    os.kill(target, signal.SIGSTOP)
                    time.sleep(rng.choice([0.3, 1.5]))
                    os.kill(target, signal.SIGCONT)
            elif self.fault == "cut_link":
                self.hosts.link(rng.randrange(self.machines), "down")
            elif self.fault == "stranger":
                self.send_strangers()
        except ProcessLookupError:
            pass

    def send_strangers(self):
        script = ("import os, random, socket, sys, time\n"
                  "rng = random.Random(int(sys.argv[2]))\n"
                  "for _ in range(20):\n"
                  "    try:\n"
                  "        s = socket.create_connection((sys.argv[1], int(sys.argv[3])), 2)\n"
                  "        s.sendall(rng.randbytes(rng.choice([1, 4, 5, 300, 70000])))\n"
                  "        time.sleep(rng.choice([0, 0, 0.1]))\n"
                  "        s.close()\n"
                  "    except OSError:\n"
                  "        time.sleep(0.05)\n")
        # From another host than machine 0's.
        subprocess.run(self.hosts.on(1, [sys.executable, "-c", script, self.hosts.address(0),
                                         str(self.seed), str(PORT)]), timeout=60)

    def wait(self):
        end = time.monotonic() + END_LIMIT
        for job in self.jobs:
            try:
                job.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.problems.append(f"machine {self.jobs.index(job)} did not end")
        for job in self.jobs:
            job.out.join(20)
            job.err.join(20)

    def check(self):
        left = marked(self.mark.encode())
        patience = time.monotonic() + 20
        while left and time.monotonic() < patience:
            time.sleep(0.05)
            left = marked(self.mark.encode())
        if left:
            self.problems.append(f"left behind: {left}")
        if list((self.folder / "tmp").iterdir()):
            self.problems.append(f"temporary files: {list((self.folder / 'tmp').iterdir())}")
        for machine, job in enumerate(self.jobs):
            text = job.err.data.decode(errors="replace")
            # A signal before the launcher has begun ends it as it ends any program.
            was_killed = job.returncode < 0 or job.returncode == 128 + signal.SIGKILL
            if job.returncode != 0 and not was_killed and 2 not in self.closed and \
                    "[launch]" not in text and "accelerate:" not in text:
                self.problems.append(f"machine {machine}: code {job.returncode} without a reason")
            if job.returncode == 2 and self.fault not in ("low_files", "full_disk"):
                self.problems.append(f"machine {machine}: the workers were not started")
        self.check_lines()

    def check_lines(self):
        if self.fault in ("kill_launcher", "kill_supervisor", "late_and_kill"):
            return  # Nobody is left to write them.
        if any(b"exiting now; some output was not read" in job.err.data for job in self.jobs):
            return  # A signal ended the wait for a paused reader.
        seen = set()
        for job in self.jobs:
            for stream, reader in ((1, job.out), (2, job.err)):
                for line in reader.data.decode(errors="replace").split("\n"):
                    found = LINE.match(line)
                    if found and int(found[4]) == stream:
                        if (found[1] or "0") != found[2]:
                            self.problems.append(f"wrong prefix: {line[:80]}")
                        seen.add((found[2], found[3], found[4], found[5]))
                    elif found or (("<" in line or ">" in line) and
                                   not line.startswith(("[launch]", "    ")) and
                                   self.manner != "closed" and "Fatal Python" not in line and
                                   not self.is_last_part(line)):
                        self.problems.append(f"torn line: {line[:120]!r}")
        for path in (self.folder / "counts").iterdir():
            rank, attempt, stream = path.name.split(".")
            log = self.log_of(rank, attempt, stream)
            for number in path.read_text().split():
                key = (rank, attempt, stream, number)
                if key not in seen and int(stream) not in self.closed and \
                        not (stream == "1" and self.manner == "closed"):
                    self.problems.append(f"not shown: {key}")
                    return
                if self.logs and not self.is_small and f"<{rank} {attempt} {stream} {number} " \
                        not in log:
                    self.problems.append(f"not in the log: {key}")
                    return

    @staticmethod
    def is_last_part(line):
        """A worker that was killed in the middle of a line; or Python's stacks."""
        return re.match(r'^(\[rank \d+\] )?(<\d+ \d+ [12] \d+ x*|  File ".*|<[^>]*)$', line)

    def log_of(self, rank, attempt, stream):
        name = "stdout.log" if stream == "1" else "stderr.log"
        text = ""
        for path in self.log_dir.glob(f"run_*/attempt_{attempt}/rank_{rank}/{name}"):
            text += path.read_text(errors="replace")
        return text

    def clean(self):
        for pid in marked(self.mark.encode()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for job in self.jobs:
            job.wait()
        if self.is_small:
            subprocess.run(["umount", "-l", self.log_dir])
        if self.fault == "cut_link":
            for host in range(self.hosts.count):
                self.hosts.link(host, "up")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    is_long = "ACCELERATE_TEST_LONG" in os.environ
    parser.add_argument("--seconds", type=float, default=300 if is_long else 60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--cases", type=int, default=1 << 30)
    options = parser.parse_args()
    # Other jobs each time, but where every change must pass: those that are known to.
    seed = random.randrange(1 << 30) if is_long or options.seconds > 60 else 1
    if options.seed is not None:
        seed = options.seed
    hosts = Hosts()
    end = time.monotonic() + options.seconds
    done = 0
    failures = []
    try:
        while done < options.cases and (done == 0 or time.monotonic() < end):
            case = Case(seed + done, os.path.abspath(options.program), hosts)
            begin = time.monotonic()
            problems = case.run()
            done += 1
            if problems:
                print(f"[torture] seed {case.seed} ({', '.join(case.told)}) after "
                      f"{time.monotonic() - begin:.1f} s: " + "; ".join(problems[:5]))
                for machine, job in enumerate(case.jobs):
                    print(f"  machine {machine}: code {job.returncode}, stderr ends in\n    " +
                          "\n    ".join(job.err.data.decode(errors="replace")[-600:].split("\n")))
                sys.stdout.flush()
                failures.append(case.seed)
    finally:
        hosts.remove()
    print(f"[torture] {done} jobs from seed {seed} on {hosts.count or 'no'} hosts, "
          f"{len(failures)} failed" + (f": --seed {failures[0]} --cases 1" if failures else ""))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
