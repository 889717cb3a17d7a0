# SPDX-License-Identifier: Apache-2.0
"""Prepared data loaders, which determine the batches of a process and where a loop resumes."""
