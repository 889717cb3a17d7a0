# SPDX-License-Identifier: Apache-2.0
"""The connection of this process to the run, and the position of its main thread."""
