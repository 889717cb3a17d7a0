# SPDX-License-Identifier: Apache-2.0
"""Runs some quick tests again in a hostile environment: they must pass on every machine.

    python3 tests/support/surroundings_test.py CTEST BUILD

The first environment has a terminal and the variables of a job; PATH, HOME and PYTHONPATH lead to
other people's programs and settings. In the second one stdin is closed, HOME cannot be written, and
the user is not root. CTest starts the tests of BUILD, as in `./dev test`.
"""
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile

# Quick ones that depend on the environment: settings, programs, files, times.
TESTS = ("cli_test", "config_command_test", "config_test", "documents", "hardware_test",
         "observe_test", "process_test", "sharding_simulator", "tracking_test")
# Slower: in the first environment only.
PYTHON_TESTS = ("python_commands",)
PROGRAMS = ("accelerate bash c++ chromium clang-format cmake docker env g++ gcloud git hostname ip "
            "kubectl ldd mpiexec mpirun ninja nproc nvidia-smi python python3 sh sleep srun ssh "
            "ssh-keygen sshd").split()
JOB = {
    "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.9.8.7",
    "MASTER_PORT": "1", "GROUP_RANK": "1", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2",
    "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1",
    "SLURM_NODELIST": "n[1-4]", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8",
    "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMI_SIZE": "8", "PMI_RANK": "5", "PMIX_RANK": "5",
    "ACCELERATE_NUM_PROCESSES": "7", "ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_USE_CPU": "maybe",
    "ACCELERATE_LOG_LEVEL": "loud", "ACCELERATE_LOG_DIR": "/proc/no", "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "9", "ACCELERATE_CONFIG_FILE": "/proc/no", "PET_NNODES": "4",
}
TASTE = {
    "LC_ALL": "tr_TR.UTF-8", "LANG": "de_DE.ISO-8859-1", "LANGUAGE": "de", "TZ": "America/St_Johns",
    "TERM": "dumb", "NO_COLOR": "1", "FORCE_COLOR": "1", "COLUMNS": "17", "LINES": "3",
    "BASH_FUNC_true%%": "() { false\n}", "BASH_ENV": "/proc/no", "ENV": "/proc/no",
    "PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": "2", "PYTHONWARNINGS": "error", "PYTHONHASHSEED": "7",
    "PYTEST_ADDOPTS": "--collect-only", "OMP_NUM_THREADS": "0", "OPENBLAS_NUM_THREADS": "4",
    "MALLOC_ARENA_MAX": "1", "HF_HOME": "/proc/no", "HF_HUB_OFFLINE": "0", "XDG_CACHE_HOME": "/proc/no",
    "XDG_CONFIG_HOME": "/proc/no", "XDG_RUNTIME_DIR": "/proc/no", "http_proxy": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",
    "WANDB_MODE": "online", "EDITOR": "false", "BROWSER": "false", "CDPATH": "/", "IFS": "/",
}


def make_things_of_somebody_else(folder: pathlib.Path) -> dict[str, str]:
    programs, home, modules = folder / "programs", folder / "home", folder / "modules"
    for name in PROGRAMS:
        program = programs / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\necho rubbish of \"$0\"\necho rubbish >&2\nexit 1\n")
        program.chmod(0o755)
    settings = home / ".cache/huggingface/accelerate"
    settings.mkdir(parents=True)
    (settings / "default_config.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 7\n")
    (settings / "default_config.json").write_text("rubbish")
    modules.mkdir()
    for name in ("sitecustomize", "json", "pytest", "torch", "accelerate"):
        (modules / f"{name}.py").write_text("raise SystemExit('rubbish')\n")
    return {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "PYTHONPATH": str(modules)}


def kept() -> dict[str, str]:
    """Paths of libraries and the variables of `./dev test`, without the oracles, which are slow."""
    own = re.compile(r"ACCELERATE_TEST_.*|LD_.*|TMPDIR|PATH|HOME")
    return {name: value for name, value in os.environ.items() if own.fullmatch(name)}


def as_ordinary_user(command: list[str]) -> list[str]:
    """The command without root's rights, or unchanged if this machine cannot drop them."""
    without = ["/usr/bin/unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if os.geteuid() != 0:
        return command
    try:
        subprocess.run([*without, "/bin/true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print("cannot drop root's rights on this machine; running as root")
        return command
    return [*without, *command]


def run_on_terminal(command: list[str], variables: dict[str, str]) -> tuple[int, str]:
    child, terminal = pty.fork()
    if child == 0:
        os.umask(0o077)
        os.execve(command[0], command, variables)
    said = b""
    while True:
        try:
            said += os.read(terminal, 65536)
        except OSError:  # The last process on the terminal has ended.
            break
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.decode(errors="replace")


def run_without_input(command: list[str], variables: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        ["/bin/sh", "-c", 'umask 0; exec "$@" <&-', "sh", *command], env=variables,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    return done.returncode, done.stdout


def check(where: str, result: tuple[int, str]) -> None:
    code, said = result
    ran = re.findall(r"Test +#\d+: (\S+) .*? (?:Passed|\*\*\*Skipped)", said)
    print(f"{where}: {' '.join(ran)}")
    # A build without torch has no tests of Python.
    assert code == 0 and set(TESTS) <= set(ran), f"{where}: exit code {code}\n{said}"


def main() -> None:
    ctest, build = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # A folder of its own for CTest's files: the run that this test is part of has those of BUILD.
        (folder / "CTestTestfile.cmake").write_text(f'subdirs("{build}")\n')
        start = [ctest, "--test-dir", name, "-j", "6", "--output-on-failure", "-R"]
        full = {**kept(), **JOB, **TASTE, **make_things_of_somebody_else(folder)}
        command = [*start, f"^({'|'.join(TESTS + PYTHON_TESTS)})$"]
        check("in a terminal, inside of a job", run_on_terminal(command, full))
        bare = {**kept(), "PATH": "/proc/no", "HOME": "/proc/no", "TZ": "Asia/Kolkata"}
        command = as_ordinary_user([*start, f"^({'|'.join(TESTS)})$"])
        check("without input, as an ordinary user", run_without_input(command, bare))


main()
