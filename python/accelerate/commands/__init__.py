# SPDX-License-Identifier: Apache-2.0
"""The program `accelerate` for Python code: parsers with the program's own options, and functions
that run it."""

from accelerate._placeholders import placeholders_for

__getattr__ = placeholders_for(__name__)
