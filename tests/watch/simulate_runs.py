# SPDX-License-Identifier: Apache-2.0
"""Folders as runs leave them, with made-up values."""
import json
import math
import random
from pathlib import Path

PARTS = {"data": 0.008, "forward": 0.03, "backward": 0.055, "optimizer": 0.009, "other": 0.002}


class Run:
    """One run that began at `begin`, seconds since 1970, and lasted `length` of them."""

    def __init__(self, folder: Path, ranks: int, begin: float, length: int, seed: int = 0,
                 slow_rank: int | None = None, rate: float = 3e-4) -> None:
        self.folder, self.ranks, self.begin, self.length = folder, ranks, begin, length
        self.slow_rank, self.rate = slow_rank, rate
        self.random = random.Random(seed)
        (folder / "ranks").mkdir(parents=True)
        self.lines: list[dict] = []
        self.nan_from: float | None = None

    def event(self, time: float, event: str, **fields: object) -> None:
        self.lines.append({"time": time, "event": event, **fields})

    def write(self, *, restart_at: float | None = None, is_finished: bool = True) -> None:
        hosts = [f"node{rank // 8 + 1}" for rank in range(self.ranks)]
        start = {"schema": 1, "run": self.folder.name, "num_processes": self.ranks}
        self.event(self.begin, "start", attempt=0, host="node1", pid=1, **start)
        self.event(self.begin, "configuration", values={
            "lr": self.rate, "layers": 12, "batch_size": 32, "data": "tiny_stories",
            "optimizer": "adamw"})
        per_second, steps = 10, self.length * 10
        for step in range(0, steps, 5):
            time = self.begin + 1 + step / per_second
            done = step / steps
            if restart_at and step == int(steps * restart_at) // 5 * 5:
                self.event(time, "start", attempt=1, host="node1", pid=2, **start)
                self.event(time, "resume", step=step - step % 500)
            rate = self.rate * min(done / 0.1, 0.5 * (1 + math.cos(math.pi * done)))
            loss = 1.6 + 3.1 * math.exp(-7 * done * (1 + 800 * self.rate)) + self.random.gauss(0, 0.05)
            if self.nan_from is not None and done >= self.nan_from:
                loss = "NaN"
            self.lines.append({"time": time, "step": step, "values": {
                "loss": loss, "lr": rate, "grad_norm": 0.6 + abs(self.random.gauss(0, 0.25))}})
            if step % 500 == 0 and step:
                self.event(time, "checkpoint", step=step)
                self.lines.append({"time": time, "step": step, "values": {
                    "eval/accuracy": 0.35 + 0.45 * (1 - math.exp(-4 * done))}})
        if is_finished:
            self.event(self.begin + self.length + 2, "finish")
        write_lines(self.folder / "metrics.jsonl", self.lines)
        for rank, host in enumerate(hosts):
            self._write_rank(rank, host)

    def _write_rank(self, rank: int, host: str) -> None:
        lines: list[dict] = [{"time": self.begin, "event": "start", "schema": 1, "rank": rank,
                              "num_processes": self.ranks, "attempt": 0, "host": host}]
        if rank == 0:
            lines[0].update(command=f"python train.py --rate {self.rate}", commit="1f0c3a9" + 33 * "0",
                            versions={"accelerate": "0.1.0", "torch": "2.11.0"})
        every = max(self.length // 300, 1)
        for second in range(every, self.length, every):
            parts = {name: part * self.random.uniform(0.9, 1.15) for name, part in PARTS.items()}
            if second % 97 < every:
                parts["data"] *= 4
            if rank == self.slow_rank and second > self.length / 4:
                parts["forward"] *= 1.9
            # All wait for the slowest.
            whole = 0.155 if self.slow_rank is not None and second > self.length / 4 else 0.125
            parts["communication"] = max(whole - sum(parts.values()), 0.001)
            steps = every / whole
            memory = 2.1e9 + 3e8 * math.tanh(second / 40) + 1e7 * rank
            lines.append({"time": self.begin + second, "step": int(second * 8), "values": {
                "steps": steps, "cpu": every * self.random.uniform(0.8, 1.1), "memory": int(memory),
                "device_memory": int(3 * memory), "device_busy": 0.85 * every,
                **{name: part * steps for name, part in parts.items()}}})
        write_lines(self.folder / "ranks" / f"rank_{rank}.jsonl", lines)

    def crash(self, rank: int, error: str) -> None:
        """As the launcher saw it, a second after the end."""
        write_lines(self.folder / "exits.jsonl", [{
            "time": self.begin + self.length + 1, "event": "exit", "exit_code": 1, "rank": rank,
            "host": f"node{rank // 8 + 1}", "how": "failed with exit code 1", "error": error}])

    def write_logs(self) -> None:
        for rank in range(self.ranks):
            folder = self.folder / "logs" / "run_20260101-a" / "attempt_0" / f"rank_{rank}"
            folder.mkdir(parents=True)
            (folder / "stdout.log").write_text("".join(
                f"[RANK {rank}] INFO train: epoch {epoch}\n" for epoch in range(30)))
            (folder / "stderr.log").write_text(f"warning of rank {rank}\n")


def write_lines(path: Path, lines: list[dict]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
