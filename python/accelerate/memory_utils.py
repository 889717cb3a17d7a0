# SPDX-License-Identifier: Apache-2.0
"""The old place of `accelerate.utils.memory`."""

from accelerate import _debug

_debug.warn(
    "[accelerate.memory_utils] is empty since its contents moved to accelerate.utils.memory: "
    "write `from accelerate import find_executable_batch_size`",
    FutureWarning,
    stacklevel=2,
)
