# SPDX-License-Identifier: Apache-2.0
"""What every other module may use: checked arguments, nested values, warnings."""
