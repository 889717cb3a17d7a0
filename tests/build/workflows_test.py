# SPDX-License-Identifier: Apache-2.0
"""Workflows, issue forms, hooks, container files and the scripts of this tree are well formed, and name
what exists.

yamllint and shellcheck are Debian's, whatever others are on the PATH. Debian has no checker for
container files: their steps are checked as the scripts that they are.
"""
import pathlib
import re
import subprocess
import sys

YAMLLINT, SHELLCHECK = map(pathlib.Path, ("/usr/bin/yamllint", "/usr/bin/shellcheck"))
for program in YAMLLINT, SHELLCHECK:
    if not program.exists():
        print(f"skipped: {program} is not installed; ./dev test installs it")
        sys.exit(77)
import yaml  # Debian's yamllint brings it.

yamls = [pathlib.Path(".pre-commit-config.yaml"), pathlib.Path(".clang-tidy"), *sorted(
    path for folder in (".github", "docs", "examples") for path in pathlib.Path(folder).rglob("*")
    if path.suffix in (".yaml", ".yml"))]
scripts = [pathlib.Path("dev"), *sorted(
    path for folder in (".ci", "examples", "tools") for path in pathlib.Path(folder).rglob("*")
    if path.is_file() and path.read_bytes().startswith((b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/env bash")))]


def check(*command):
    answer = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if answer.returncode != 0:
        sys.exit(answer.stdout + answer.stderr)


check(YAMLLINT, "--strict", *yamls)
check(SHELLCHECK, "--severity=warning", *scripts)


def loaded(name):
    return yaml.safe_load(pathlib.Path(name).read_text())


project = pathlib.Path("pyproject.toml").read_text()
releases = re.findall(r'"([\d.]+)"', re.search(r"^torch = \[(.+)\]$", project, re.M)[1])
(job,) = loaded(".github/workflows/tests.yml")["jobs"].values()
assert job["strategy"]["matrix"]["torch"] == releases, (
    f"tests.yml runs with torch {job['strategy']['matrix']['torch']}, pyproject.toml lists {releases}")
commands = [step.get("run", "") for step in job["steps"]]
assert commands[-1] == "./dev --torch ${{ matrix.torch }} test", commands

# What a hook runs is there. A hook that passes file names would need to know them.
for hook in loaded(".pre-commit-config.yaml")["repos"][0]["hooks"]:
    words = [word for word in hook["entry"].split() if "/" in word]
    missing = [word for word in words if not pathlib.Path(word).exists()]
    assert words and not missing, f"the hook {hook['id']} names {missing}, which do not exist"
    assert hook["language"] == "system" and hook["pass_filenames"] is False, hook

# --- containers ---
def instructions(dockerfile):
    """(instruction, rest) of each one, continued lines joined."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.M)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


KNOWN = {"ARG", "FROM", "RUN", "ENV", "COPY", "USER", "WORKDIR", "CMD"}
for name in ("Dockerfile", "examples/kubernetes/Dockerfile"):
    steps = list(instructions(pathlib.Path(name)))
    assert {word for word, _ in steps} <= KNOWN, f"{name} has instructions other than {sorted(KNOWN)}"
    assert [word for word, _ in steps[:2]] == ["ARG", "FROM"], f"{name} does not begin with its base"
    # What is declared before FROM is not known after it.
    known = {"BASE": 0}
    for word, rest in steps:
        if word == "RUN":
            script = "#!/bin/sh\nset -e\n" + "".join(f"{arg}=value\n" for arg in known) + rest + "\n"
            answer = subprocess.run([SHELLCHECK, "--severity=warning", "--exclude=SC2034", "-"],
                                    input=script, capture_output=True, text=True)
            assert answer.returncode == 0, f"{name}: {answer.stdout}"
            # A layer keeps what is not removed in it.
            assert "apt-get install" not in rest or "rm -rf /var/lib/apt/lists" in rest, f"{name}: {rest}"
            assert "pip install" not in rest or "--no-cache-dir" in rest, f"{name}: {rest}"
        elif word == "ARG":
            known[rest.partition("=")[0]] = 1
        elif word in ("CMD", "ENTRYPOINT"):
            assert isinstance(yaml.safe_load(rest), list), f"{name}: {rest} is run by a shell, which gets the signals"
steps = dict(instructions(pathlib.Path("Dockerfile")))
assert steps["USER"] != "root"
assert f"ARG TORCH={releases[-1]}" in pathlib.Path("Dockerfile").read_text(), (
    f"the Dockerfile installs another torch than {releases[-1]}")
for name in ("indexed_job", "jobset"):
    manifest = pathlib.Path(f"examples/kubernetes/{name}.yaml").read_text()
    assert "image: train:latest" in manifest and "train.py]" in manifest, name
assert pathlib.Path("examples/cmake_project/train.py").exists()

# GitHub ignores a form without these keys.
forms = [path for path in pathlib.Path(".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
for form in forms:
    assert {"name", "description", "body"} <= set(loaded(form)), form
print(f"{len(yamls)} YAML files and {len(scripts)} scripts are in order")
