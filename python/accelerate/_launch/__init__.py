# SPDX-License-Identifier: Apache-2.0
"""Functions that run on the workers of `accelerate launch`."""
