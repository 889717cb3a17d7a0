# SPDX-License-Identifier: Apache-2.0
"""Fails unless the original package is the one that is imported."""

import accelerate

assert "+" not in accelerate.__version__
