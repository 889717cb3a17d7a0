# SPDX-License-Identifier: Apache-2.0
"""Says of files whose tests are all skipped that they were skipped."""

from __future__ import annotations

import pytest

# What CTest shows as skipped; see CMakeLists.txt.
SKIPPED = 77


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    if stats.get("skipped") and not any(map(stats.get, ("passed", "failed", "error"))):
        session.exitstatus = SKIPPED
