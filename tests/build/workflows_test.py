# SPDX-License-Identifier: Apache-2.0
"""Workflows, issue forms, hooks and the scripts of this tree are well formed, and name what exists.

yamllint and shellcheck are Debian's, whatever others are on the PATH.
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

# GitHub ignores a form without these keys.
forms = [path for path in pathlib.Path(".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
for form in forms:
    assert {"name", "description", "body"} <= set(loaded(form)), form
print(f"{len(yamls)} YAML files and {len(scripts)} scripts are in order")
