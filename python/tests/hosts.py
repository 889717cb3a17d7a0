# SPDX-License-Identifier: Apache-2.0
"""Two simulated machines for tests: network namespaces with a cable between them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

ADDRESSES = ("10.78.0.1", "10.78.0.2")


def _ip(*arguments: str) -> bool:
    command = ["ip", *arguments]
    return subprocess.run(command, capture_output=True).returncode == 0


@contextmanager
def two_hosts() -> Iterator[tuple[list[str], list[str]]]:
    """Command prefixes that run a command on the first and on the second machine, with `ADDRESSES`.
    Skips the test if this machine cannot create namespaces."""
    names = [f"py{os.getpid()}h{host}" for host in range(2)]
    if os.geteuid() != 0 or not _ip("netns", "add", names[0]):
        pytest.skip("network namespaces need root and iproute2")
    try:
        made = _ip("netns", "add", names[1])
        cable = ["type", "veth", "peer", "name", "eth0", "netns", names[1]]
        made = made and _ip("-n", names[0], "link", "add", "eth0", *cable)
        for name, address in zip(names, ADDRESSES):
            made = made and _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            made = made and _ip("-n", name, "link", "set", "eth0", "up")
            made = made and _ip("-n", name, "link", "set", "lo", "up")
        assert made, "cannot make network namespaces"
        first, second = (["ip", "netns", "exec", name] for name in names)
        yield first, second
    finally:
        for name in names:
            _ip("netns", "del", name)
