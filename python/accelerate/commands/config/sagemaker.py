# SPDX-License-Identifier: Apache-2.0
"""Jobs of Amazon SageMaker, which this package does not submit."""

from __future__ import annotations

from typing import NoReturn

from accelerate._placeholders import placeholders_for


def get_sagemaker_input() -> NoReturn:
    raise NotImplementedError(
        "[config] jobs are not submitted to SageMaker: there is nothing to ask for; a file that "
        "the original wrote is read by load_config_from_file()"
    )


__getattr__ = placeholders_for(__name__)
