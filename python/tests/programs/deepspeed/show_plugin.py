# SPDX-License-Identifier: Apache-2.0
from accelerate import Accelerator

a = Accelerator()
plugin = a.deepspeed_plugin
if a.is_main_process:
    print(a.distributed_type.value, plugin.zero_stage, plugin.gradient_clipping, a.mixed_precision)
