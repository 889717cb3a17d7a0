# SPDX-License-Identifier: Apache-2.0
"""Reports files whose tests were all skipped as skipped."""

from __future__ import annotations

import pytest

# The exit code that CTest shows as skipped; see CMakeLists.txt.
SKIPPED = 77


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    stats = session.config.pluginmanager.get_plugin("terminalreporter").stats
    if stats.get("skipped") and not any(map(stats.get, ("passed", "failed", "error"))):
        session.exitstatus = SKIPPED
