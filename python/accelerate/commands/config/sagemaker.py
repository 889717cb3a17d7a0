# SPDX-License-Identifier: Apache-2.0
"""The questions for Amazon SageMaker jobs, which are not supported."""

from __future__ import annotations

from typing import NoReturn

from accelerate._placeholders import placeholders_for


def get_sagemaker_input() -> NoReturn:
    raise NotImplementedError(
        "[config] Submitting jobs to SageMaker is not supported, so there is nothing to configure. "
        "load_config_from_file() reads existing files"
    )


__getattr__ = placeholders_for(__name__)
