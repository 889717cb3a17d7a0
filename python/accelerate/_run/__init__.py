# SPDX-License-Identifier: Apache-2.0
"""The parts of an `Accelerator`, and the options with which it is created."""
