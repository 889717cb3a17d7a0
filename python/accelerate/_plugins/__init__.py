# SPDX-License-Identifier: Apache-2.0
"""The plugins of FSDP and DeepSpeed: their configuration, and which plugins are active."""
