# SPDX-License-Identifier: Apache-2.0
"""Prepared data loaders: which batches a process gets, and where a loop resumes."""
