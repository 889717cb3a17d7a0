# SPDX-License-Identifier: Apache-2.0
"""Prepared modules: calls that go through the engine."""
