# SPDX-License-Identifier: Apache-2.0
"""The exceptions of this package. Every message says what went wrong and what to do. C++ has the
same classes (`accelerate/error.h`)."""

from __future__ import annotations


class AccelerateError(RuntimeError):
    """The base class of all exceptions of this package."""


class ConfigError(AccelerateError, ValueError):
    """Environment variables, files or options are missing, malformed or contradictory."""


class UsageError(AccelerateError, ValueError):
    """A call that violates its contract. Fix the program."""


class DataError(AccelerateError):
    """Malformed data."""


class CommError(AccelerateError):
    """A collective operation failed: another process has exited or sent an invalid reply."""


class CommTimeoutError(CommError, TimeoutError):
    """A collective operation or the connection of the processes exceeded its time limit."""


class MismatchError(CommError, ValueError):
    """Processes called a collective with values that do not match."""


def in_one_line(error: BaseException) -> str:
    """Returns the type and message of an error on one line, to send to other processes."""
    return " ".join(f"{type(error).__name__}: {error}".split())
