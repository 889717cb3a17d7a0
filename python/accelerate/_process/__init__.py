# SPDX-License-Identifier: Apache-2.0
"""This process in the run: its connection, and the position of its main thread."""
