# SPDX-License-Identifier: Apache-2.0
"""State as values and files that load without running code, and the state of random generators."""
