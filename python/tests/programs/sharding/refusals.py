# SPDX-License-Identifier: Apache-2.0
import os
import warnings

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from sharded_run import begin, refused, train
from small_net import Net

launched = {name: value for name, value in os.environ.items() if "FSDP" in name}
for name in launched:
    del os.environ[name]
Plugin = FullyShardedDataParallelPlugin
accelerator = begin(ignored_modules=[torch.nn.Linear(1, 1)])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    accelerator.prepare(Net())
assert "ignored_modules matches no parameter of this Net" in str(caught[-1].message)
refused(lambda: begin(param_init_fn=lambda module: None), "param_init_fn")
refused(lambda: begin(state_dict_type="LOCAL_STATE_DICT"), "LOCAL_STATE_DICT")
refused(
    lambda: begin(
        fsdp_version=2, activation_checkpointing=True, activation_checkpointing_offload=True
    ),
    "offload",
)
refused(lambda: begin(mixed_precision_policy="bf16"), "mixed_precision_policy")
refused(lambda: Accelerator(fsdp_plugin="FULL_SHARD"), "FullyShardedDataParallelPlugin")
for name, value, words in [
    ("fsdp_version", "2", 'fsdp_version is "2" (a string), expected 1 or 2. Write 2 without'),
    ("fsdp_version", True, "fsdp_version is true (a boolean)"),
    ("fsdp_version", 3, "fsdp_version is 3 (a number)"),
    ("activation_checkpointing", "maybe", 'is "maybe" (a string), expected true or false'),
    ("cpu_ram_efficient_loading", [1], "cpu_ram_efficient_loading is [1] (a list)"),
    ("min_num_params", 1.5, "min_num_params is 1.5 (a number), expected a whole number"),
    ("transformer_cls_names_to_wrap", 3, "transformer_cls_names_to_wrap is 3 (a number)"),
    ("auto_wrap_policy", 3, "auto_wrap_policy is 3 (a number)"),
    ("ignored_modules", 3, "ignored_modules is 3 (a number)"),
    ("sharding_strategy", 0, "ShardingStrategy"),
]:
    refused(lambda: Plugin(**{name: value}), words)
refused(
    lambda: Plugin(fsdp_version=2, reshard_after_forward="maybe"),
    "[FSDP] reshard_after_forward is set to maybe",
)
assert Plugin(activation_checkpointing="false").activation_checkpointing is False
for name, words in [
    ("FSDP_VERSION", 'FSDP_VERSION is "two"'),
    ("FSDP_ACTIVATION_CHECKPOINTING", "FSDP_ACTIVATION_CHECKPOINTING is 'two'"),
]:
    os.environ[name] = "two"
    refused(Plugin, words)
    del os.environ[name]
accelerator = begin(
    auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Nobody"]
)
refused(lambda: accelerator.prepare(Net()), "Nobody")
accelerator = begin(activation_checkpointing=True)
refused(lambda: accelerator.prepare(Net()), "auto_wrap_policy")
accelerator = begin(ignored_modules="(")
refused(lambda: accelerator.prepare(Net()), "[FSDP] ignored_modules is '('")
accelerator = begin(fsdp_version=2)
with torch.device("meta"):
    nothing = Net()
if accelerator.is_main_process:
    refused(lambda: accelerator.prepare(nothing), "on the meta device on process 0")
accelerator = begin()
refused(lambda: Accelerator(fsdp_plugin=Plugin()), "_reset_state")
# Nothing is sharded: data parallel training under another name.
accelerator = begin(sharding_strategy="NO_SHARD")
assert accelerator.distributed_type == DistributedType.FSDP
model, _, _ = train(accelerator, Net)
assert model.state_dict()["words.weight"].sum().isfinite()
# As the launcher says, by variables; in bf16 the policy answers as the original's.
AcceleratorState._reset_state()
for name in [name for name in os.environ if "FSDP" in name]:
    del os.environ[name]
os.environ.update(launched)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
assert accelerator.is_fsdp2
plugin = accelerator.state.fsdp_plugin
assert plugin.mixed_precision_policy.param_dtype == torch.bfloat16
assert plugin.transformer_cls_names_to_wrap == ["Block"] and plugin.reshard_after_forward
assert plugin.activation_checkpointing is True
model, _, _ = train(accelerator, Net)
state = accelerator.get_state_dict(model)
assert all(value.dtype == torch.float32 for name, value in state.items() if "weight" in name)
# A second one of the process shards as the first.
assert Accelerator().is_fsdp2
print("refused", accelerator.process_index)
