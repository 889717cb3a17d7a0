# SPDX-License-Identifier: Apache-2.0
"""The old name of `accelerate.utils.memory`."""

from accelerate._base import debug as _debug

_debug.warn(
    "[accelerate.memory_utils] This module moved to accelerate.utils.memory. Write `from "
    "accelerate import find_executable_batch_size`",
    FutureWarning,
    stacklevel=2,
)
