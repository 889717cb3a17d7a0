# SPDX-License-Identifier: Apache-2.0
"""A run that is asked to stop saves, is restarted, and ends as if it had not been interrupted."""

from __future__ import annotations

import ranks

TRAIN = "preemption/stop_and_resume.py"


def test_a_run_that_was_asked_to_stop_resumes_bit_for_bit(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "again").mkdir()
    whole = ranks.launch_ours(TRAIN, tmp_path / "whole", "0")
    again = ranks.launch_ours(TRAIN, tmp_path / "again", "5")
    assert [answer[0] for answer in whole] == [False, False]
    assert [answer[0] for answer in again] == [True, True]
    assert [answer[1:] for answer in again] == [answer[1:] for answer in whole]
