# SPDX-License-Identifier: Apache-2.0
"""The files that Python adds to checkpoints."""
