# SPDX-License-Identifier: Apache-2.0
"""Helpers for all other modules: checked arguments, nested values, warnings."""
