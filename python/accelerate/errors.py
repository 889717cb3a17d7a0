# SPDX-License-Identifier: Apache-2.0
"""The exceptions of this package. Every message says what went wrong and what to do; the same
classes exist in C++ (`accelerate/error.h`)."""

from __future__ import annotations


class AccelerateError(RuntimeError):
    """Base of every exception of this package."""


class ConfigError(AccelerateError, ValueError):
    """Variables, files or options that are missing, malformed or contradictory."""


class UsageError(AccelerateError, ValueError):
    """A call that breaks its contract: the program has to change."""


class DataError(AccelerateError):
    """Data that is malformed."""


class CommError(AccelerateError):
    """A collective operation that failed: a peer is gone or answered wrongly."""


class CommTimeoutError(CommError, TimeoutError):
    """A collective operation or a first contact that took longer than allowed."""


class MismatchError(CommError, ValueError):
    """Processes that called one collective with values that do not fit together."""


def in_one_line(error: BaseException) -> str:
    """What other processes are told of it."""
    return " ".join(f"{type(error).__name__}: {error}".split())
