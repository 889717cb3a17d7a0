# SPDX-License-Identifier: Apache-2.0
"""Converts the plugins of FSDP and DeepSpeed to options of the engine."""
