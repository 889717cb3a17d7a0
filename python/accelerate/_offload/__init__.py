# SPDX-License-Identifier: Apache-2.0
"""Places the weights of models that are larger than a device, and loads them when they are used."""
