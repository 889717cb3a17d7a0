# SPDX-License-Identifier: Apache-2.0
"""Threads of a script continue while one of our calls waits for other ranks. A call that kept the
interpreter's lock would also block Gloo, whose threads free Python tensors."""

from __future__ import annotations

import ranks


def test_threads_run_while_a_call_waits(tmp_path):
    first, second = ranks.run_ours("threads/call_and_reply.py", tmp_path)
    assert first == second and "prepare, sharded" in first
