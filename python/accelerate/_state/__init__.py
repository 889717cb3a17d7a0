# SPDX-License-Identifier: Apache-2.0
"""Stores state in values and files that can be loaded without running code, and handles the state
of random generators."""
