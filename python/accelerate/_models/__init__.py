# SPDX-License-Identifier: Apache-2.0
"""Prepared modules, whose calls go through the engine."""
