# SPDX-License-Identifier: Apache-2.0
"""Runs the `accelerate` program from Python code. Each command has a parser with the program's own
options, and a function that runs it."""

from accelerate._placeholders import placeholders_for

__getattr__ = placeholders_for(__name__)
