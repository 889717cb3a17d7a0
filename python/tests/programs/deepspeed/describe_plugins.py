# SPDX-License-Identifier: Apache-2.0
import json
import sys

sys.modules.pop("deepspeed", None)
from accelerate.utils import DeepSpeedPlugin

found = []
for fields in json.loads(sys.argv[1]):
    plugin = DeepSpeedPlugin(**fields)
    plugin.set_mixed_precision(fields.get("_", "bf16"))
    plugin.deepspeed_config.pop("steps_per_print", None)
    found.append(
        [
            plugin.deepspeed_config,
            plugin.zero_stage,
            plugin.gradient_clipping,
            plugin.gradient_accumulation_steps,
            plugin.offload_optimizer_device,
            plugin.offload_param_device,
            plugin.zero3_save_16bit_model,
            plugin.zero3_init_flag,
            plugin.is_auto("train_batch_size"),
            plugin.get_value("zero_optimization.stage"),
        ]
    )
print(json.dumps(found))
