# SPDX-License-Identifier: Apache-2.0
"""FSDP's and DeepSpeed's plugins as options of the engine."""
