# SPDX-License-Identifier: Apache-2.0
"""This process among the others: its connection, and where its main thread is."""
