# SPDX-License-Identifier: Apache-2.0
"""`notebook_launcher` and `debug_launcher`, called from a plain Python process."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from original import PROGRAMS
from processes import LIMIT_SECONDS, is_alive, wait_until

from accelerate._launch import child as _launch_child
from accelerate.launchers import (
    LaunchError,
    PrepareForLaunch,
    debug_launcher,
    notebook_launcher,
)


def start_program(program: str | Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / program), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
        start_new_session=True,
    )


def run_program(program: str | Path, **variables: str) -> str:
    process = start_program(program, **variables)
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, err
    return out


# What travels


def test_what_main_defines_can_be_pickled_by_the_workers():
    assert "[[1, 2], [3, 4]]" in run_program("launchers/pickle_in_workers.py")


def test_rank_0s_value_comes_back_for_the_arguments_given():
    def describe(word: str, times: int) -> list[str]:
        return [word * times, os.environ["RANK"], os.environ["WORLD_SIZE"]]

    assert debug_launcher(describe, ("ab", 2)) == ["abab", "0", "2"]


def test_two_cpu_processes_are_connected():
    def sum_of_ranks() -> float:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor(float(dist.get_rank() + 1))
        dist.all_reduce(total)
        dist.destroy_process_group()
        return total.item()

    assert notebook_launcher(sum_of_ranks, num_processes=2) == 3.0


def test_classes_lambdas_closures_and_globals_of_main_travel_by_value():
    out = run_program("launchers/by_value.py")
    assert out == "True 42\n"


def test_a_module_in_the_folder_of_the_caller_is_found_though_only_its_sys_path_names_it(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "neighbour.py").write_text("def answer():\n    return 'from beside'\n")
    # The program looks for the module beside itself.
    program = Path(shutil.copy(PROGRAMS / "launchers/module_beside.py", tmp_path))
    out = run_program(program)
    assert out.splitlines() == ["from beside", f"from beside {tmp_path.name}"]


def test_the_standard_modules_are_not_those_of_the_package():
    def find_logging() -> str:
        import logging

        return logging.__file__

    import logging

    assert debug_launcher(find_logging) == logging.__file__


def test_a_captured_variable_that_cannot_travel_is_named_with_the_function():
    lock = threading.Lock()

    def helper() -> None:
        lock.acquire()

    def train() -> None:
        helper()

    with pytest.raises(TypeError) as caught:
        debug_launcher(train)
    message = str(caught.value)
    assert "train' cannot be sent" in message
    assert (
        "the captured variable 'lock' (of type lock), used by 'helper', cannot be pickled"
        in message
    )
    assert "\n" not in message


def test_a_global_variable_that_cannot_travel_is_named():
    out = run_program("launchers/generator_of_main.py")
    assert "function 'train'" in out and "global variable 'batches' (of type generator)" in out


def test_an_argument_that_cannot_travel_is_named():
    with pytest.raises(TypeError, match=r"its argument 1 \(of type lock\) cannot be pickled"):
        debug_launcher(print, (1, threading.Lock()))


def test_a_value_that_cannot_come_back_is_named():
    with pytest.raises(LaunchError) as caught:
        debug_launcher(lambda: threading.Lock())
    assert "Rank 0 returned a value of type lock that cannot be pickled" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_the_pickled_function_is_private_and_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def modes() -> list[int]:
        return [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()]

    assert debug_launcher(modes) == [0o700]
    assert list(tmp_path.iterdir()) == []


# What fails


def test_a_worker_that_raises_is_named_with_its_traceback(capfd):
    def train() -> None:
        if os.environ["RANK"] == "1":
            raise ValueError("bad batch")
        time.sleep(LIMIT_SECONDS)

    with pytest.raises(LaunchError) as caught:
        debug_launcher(train)
    message = str(caught.value)
    assert message.startswith("[debug_launcher] Rank 1 failed with exit code 1:\nTraceback")
    assert message.endswith("\nValueError: bad batch") and message.count("Traceback") == 1
    assert 'raise ValueError("bad batch")' in message
    assert "worker.py" not in message
    assert caught.value.rank == 1
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    assert capfd.readouterr().err == ""


def test_the_rank_that_failed_first_is_named_not_the_one_that_lost_it():
    def train() -> None:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            raise KeyError("culprit")
        dist.all_reduce(torch.zeros(1))

    with pytest.raises(LaunchError, match=r"Rank 1 (.*\n)+KeyError: 'culprit'"):
        debug_launcher(train)


def test_a_worker_that_is_killed_is_named_with_the_signal():
    def train() -> None:
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LIMIT_SECONDS)

    with pytest.raises(LaunchError, match=r"Rank 1 was killed \(SIGKILL\)") as caught:
        debug_launcher(train)
    assert caught.value.rank == 1


def test_a_worker_that_leaves_with_a_code_is_named_with_it():
    with pytest.raises(LaunchError, match="Rank . failed with exit code 4"):
        debug_launcher(lambda: os._exit(4))
    with pytest.raises(LaunchError, match="Rank . (.*\\n)+SystemExit: 5"):
        debug_launcher(lambda: sys.exit(5))
    assert debug_launcher(lambda: sys.exit(0)) is None


def test_a_failure_is_not_held_back_by_a_thread_of_the_worker():
    def train() -> None:
        threading.Thread(target=time.sleep, args=(10 * LIMIT_SECONDS,)).start()
        raise ValueError("with a thread")

    with pytest.raises(LaunchError, match="with a thread"):
        debug_launcher(train)


def test_a_failed_attempt_is_repeated_as_often_as_allowed():
    def train() -> str:
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if attempt != "2":
            raise ValueError(f"attempt {attempt}")
        return attempt

    assert notebook_launcher(train, num_processes=2, max_restarts=2) == "2"
    with pytest.raises(LaunchError, match="attempt 1"):
        notebook_launcher(train, num_processes=2, max_restarts=1)


# Ends


def start_waiting(
    folder: Path, *options: str, **variables: str
) -> tuple[subprocess.Popen[str], list[int]]:
    process = start_program("launchers/wait_in_workers.py", str(folder), *options, **variables)
    assert wait_until(lambda: len(list(folder.glob("*.pid"))) == 2)
    return process, [int(path.stem) for path in folder.glob("*.pid")]


@pytest.mark.parametrize("options", [[], ["ignore_interrupts"]])
def test_an_interrupt_ends_all_workers_and_the_notebook_continues(tmp_path, options):
    process, workers = start_waiting(tmp_path, *options)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert out == "interrupted\n"
    assert "Traceback" not in err
    assert not any(map(is_alive, workers))


def test_no_worker_outlives_a_caller_that_is_killed(tmp_path):
    (tmp_path / "private").mkdir()
    process, workers = start_waiting(tmp_path, TMPDIR=str(tmp_path / "private"))
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)
    assert wait_until(lambda: not any(map(is_alive, workers)))
    assert wait_until(lambda: not os.listdir(tmp_path / "private"))


# What is shown


def test_output_of_every_rank_appears_and_says_whose_it_is(capsys):
    def speak() -> None:
        print("out", os.environ["RANK"])
        print("err", os.environ["RANK"], file=sys.stderr)

    debug_launcher(speak)
    shown = capsys.readouterr()
    assert sorted(shown.out.splitlines()) == ["[rank 1] out 1", "out 0"]
    assert sorted(shown.err.splitlines()) == ["[rank 1] err 1", "err 0"]


def test_a_line_appears_before_it_is_complete(tmp_path, monkeypatch):
    answer = tmp_path / "answer"

    class Watcher(io.StringIO):
        def write(self, text: str) -> int:
            written = super().write(text)
            if "\r 10%" in self.getvalue():
                answer.touch()
            return written

    def draw() -> bool:
        if os.environ["RANK"] != "0":
            return True
        sys.stderr.write("\r 10%")
        end = time.monotonic() + LIMIT_SECONDS
        while not answer.exists() and time.monotonic() < end:
            time.sleep(0.01)
        sys.stderr.write("\r 99%\n")
        return answer.exists()

    watcher = Watcher()
    monkeypatch.setattr(sys, "stderr", watcher)
    assert debug_launcher(draw)
    assert watcher.getvalue() == "\r 10%\r 99%\n"


def test_a_progress_bar_comes_from_rank_0_only(capsys, monkeypatch):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)

    def train() -> None:
        from tqdm.auto import tqdm

        for _ in tqdm(range(3), desc=f"bar of {os.environ['RANK']}"):
            pass

    debug_launcher(train)
    shown = capsys.readouterr().err
    assert "bar of 0: 100%" in shown
    assert "bar of 1" not in shown


def test_text_that_is_cut_between_two_reads_stays_whole(capsys):
    debug_launcher(lambda: print("ä€😀" * 50_000) if os.environ["RANK"] == "0" else None)
    assert capsys.readouterr().out == "ä€😀" * 50_000 + "\n"


# How many, and where


def test_one_process_is_called_in_place_with_the_precision_set(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)

    def train(lock) -> tuple[int, str | None]:
        return os.getpid(), os.environ.get("ACCELERATE_MIXED_PRECISION")

    unsendable = (threading.Lock(),)
    assert notebook_launcher(train, unsendable, num_processes=1) == (os.getpid(), None)
    assert notebook_launcher(train, unsendable) == (os.getpid(), None)
    with_precision = notebook_launcher(train, unsendable, 1, mixed_precision="bf16")
    assert with_precision == (os.getpid(), "bf16")
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ


def test_workers_inherit_the_device_and_the_precision(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")

    def settings() -> tuple[str, str]:
        return os.environ["ACCELERATE_USE_CPU"], os.environ["ACCELERATE_MIXED_PRECISION"]

    found = notebook_launcher(settings, num_processes=2, mixed_precision="bf16")
    assert found == ("True", "bf16")
    assert debug_launcher(settings) == ("True", "no")


def test_a_configuration_for_scripts_and_an_outer_launcher_change_nothing(tmp_path, monkeypatch):
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(
        "num_machines: 4\nnum_processes: 8\nmixed_precision: bf16\nmain_process_ip: 10.0.0.1\n"
    )
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name, value in {"RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "ACCELERATE_MIXED_PRECISION", "MASTER_ADDR")
    found = notebook_launcher(lambda: [os.environ[name] for name in names], num_processes=2)
    assert found == ["0", "0", "2", "no", "127.0.0.1"]


def test_two_machines_form_one_run():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    machines = []
    # Two ways to say the same.
    ways = (
        {"master_addr": "127.0.0.1", "use_port": str(port)},
        {"rdzv_endpoint": f"127.0.0.1:{port}"},
    )
    for rank, meeting in enumerate(ways):
        words = ("launchers/two_machines.py", str(rank), json.dumps(meeting))
        machines.append(start_program(*words, ACCELERATE_USE_CPU="1"))
    ends = [machine.communicate(timeout=LIMIT_SECONDS) for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], ends
    assert [out.splitlines()[-1] for out, _ in ends] == ["('0', '4')", "None"]


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    with pytest.raises(ValueError, match="num_processes is 3, expected 1 to 2, one per GPU"):
        notebook_launcher(print, num_processes=3)
    with pytest.raises(ValueError, match="num_processes is 0, expected"):
        notebook_launcher(print, num_processes=0)


@pytest.mark.parametrize("wanted", [-1, 1.5, "2"])
def test_an_invalid_number_of_processes_raises(monkeypatch, wanted):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    with pytest.raises(ValueError, match=f"num_processes is {wanted!r}, expected a whole .* 1$"):
        notebook_launcher(print, num_processes=wanted)


def test_a_tpu_alone_is_refused_with_what_is_missing(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    with pytest.raises(NotImplementedError, match="TPUs are not supported"):
        notebook_launcher(print)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "yes")
    assert notebook_launcher(lambda: 7) == 7


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rdzv_id", "job"),
        ("log_line_prefix_template", "[${rank}]"),
        ("mixed_precision", "fp8"),
        ("node_rank", 1),
    ],
)
def test_a_setting_that_cannot_be_followed_is_named(setting, value):
    with pytest.raises(ValueError, match=setting):
        notebook_launcher(print, **{setting: value})


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((7,), "function is 7, expected a function. Pass the function itself, without calling it"),
        ((print, 3), r"args is 3, expected a tuple. Pass args=\(3,\)"),
        ((print, "ab"), r"args is 'ab', expected a tuple. Pass args=\('ab',\)"),
    ],
)
@pytest.mark.parametrize("launcher", [notebook_launcher, debug_launcher])
def test_a_call_instead_of_a_function_and_its_arguments_is_named(launcher, arguments, said):
    with pytest.raises(TypeError, match=rf"^\[{launcher.__name__}\] {said}$"):
        launcher(*arguments)


def test_what_the_program_refuses_is_raised_in_its_words(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    with pytest.raises(LaunchError, match="--main_process_port must be a whole number"):
        notebook_launcher(print, num_processes=2, use_port="99999")


def test_a_missing_program_raises_one_sentence(tmp_path, monkeypatch):
    inside = tmp_path / "lib" / "accelerate" / "_launch" / "x.py"
    monkeypatch.setattr(_launch_child, "__file__", str(inside))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="Cannot find the command `accelerate` next to"):
        debug_launcher(print)


def test_processes_of_the_users_own_get_their_rank_from_the_index(monkeypatch):
    for name, value in {"NPROC": "2", "NODE_RANK": "1", "LOCAL_RANK": "", "RANK": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FORK_LAUNCHED", "0")
    seen = []

    def train(word: str) -> None:
        names = ("LOCAL_RANK", "RANK", "FORK_LAUNCHED")
        seen.append((word, *(os.environ[name] for name in names)))

    PrepareForLaunch(train, distributed_type="MULTI_CPU")(1, "word")
    assert seen == [("word", "1", "3", "1")]


def test_custom_processes_connect_through_a_file(tmp_path):
    out = run_program(
        "launchers/own_processes.py",
        WORLD_SIZE="2",
        ACCELERATE_DEBUG_RDV_FILE=str(tmp_path / "meeting"),
    )
    assert out == "2\n"


def test_an_exception_that_cannot_be_written_is_still_named():
    def fail():
        class Bad(Exception):
            def __str__(self):
                raise ValueError("no words")

        raise Bad

    with pytest.raises(LaunchError, match="fail.<locals>.Bad"):
        debug_launcher(fail)


def test_text_that_the_callers_stream_cannot_write_is_replaced():
    out = run_program("launchers/bytes_beyond_ascii.py", PYTHONIOENCODING="ascii")
    assert "caf" in out


def test_a_folder_that_is_gone_is_no_reason_to_fail():
    assert "here" in run_program("launchers/removed_folder.py")
