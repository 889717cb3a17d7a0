# SPDX-License-Identifier: Apache-2.0
"""`Accelerator(fast=True)`: the forward and backward passes of prepared models are recorded as
device graphs and replayed behind `forward`, so that the host launches a pass instead of each of its
kernels. The training loop does not change. A call that a graph cannot represent runs eagerly."""

from accelerate._fast.optimizers import use_fused_kernels
from accelerate._fast.recorded import DeviceRecorder
from accelerate._fast.replay import Replay

__all__ = ["DeviceRecorder", "Replay", "use_fused_kernels"]
