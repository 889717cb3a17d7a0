# SPDX-License-Identifier: Apache-2.0
"""What Python adds to checkpoints."""
