# SPDX-License-Identifier: Apache-2.0
import sys

import torch
from accelerate import PartialState
from sharded_run import deepspeed, fsdp, is_cut, train, worst

assert PartialState(backend=sys.argv[1]).backend == sys.argv[1]
FULL, HALF = dict(fsdp_version=2), dict(sharding_strategy="SHARD_GRAD_OP")
train()  # Libraries take their own memory at the first step.
for run in (dict(), dict(steps=2), dict(mixed_precision="bf16")):
    expected, whole, _ = train(**run)
    for settings in (fsdp(**FULL), fsdp(**HALF), deepspeed(1), deepspeed(2), deepspeed(3)):
        if "steps" in run and "deepspeed_plugin" in settings:
            continue  # Reduces each batch, so that sums are of another order.
        state, at_rest, (accelerator, model, optimizer) = train(**run, **settings)
        # The same kernels on the same numbers; two gradients are added, and halved.
        assert worst(state, expected) == 0, (run, settings, worst(state, expected))
        held = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        assert held < 0.6 * sum(p.numel() for p in model.parameters())
        if is_cut(accelerator):
            # A half of weights and moments, and padding.
            assert at_rest < 0.6 * whole, (settings, at_rest, whole)
    # Clipping adds squares up in another order.
    expected, _, _ = train(**run, max_norm=0.1)
    state, _, _ = train(**run, max_norm=0.1, **fsdp(**FULL))
    assert worst(state, expected) < 1e-3, worst(state, expected)

# Parts on the host, whose AdamW rounds differently.
expected, whole, _ = train()
num_saved = 0
for settings in (
    fsdp(**FULL, cpu_offload=True),
    fsdp(**HALF, cpu_offload=True),
    deepspeed(1, offload_optimizer_device="cpu"),
    deepspeed(2, offload_optimizer_device="cpu"),
    deepspeed(3, offload_optimizer_device="cpu", offload_param_device="cpu"),
    deepspeed(3, offload_param_device="cpu"),
):
    state, at_rest, (accelerator, model, optimizer) = train(**settings)
    assert worst(state, expected) < 1e-3, (settings, worst(state, expected))
    parts = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(p.device.type == "cpu" for p in parts)
    assert all(
        v.device.type == "cpu"
        for entry in optimizer.state.values()
        for v in entry.values()
        if isinstance(v, torch.Tensor)
    )
    if is_cut(accelerator):
        # Nothing but the last input and what libraries keep.
        assert at_rest < 0.1 * whole, (settings, at_rest, whole)
    folder = f"offloaded_{num_saved}"
    num_saved += 1
    accelerator.save_state(folder)
    with torch.no_grad():
        for part in parts:
            part.zero_()
    accelerator.load_state(folder)
    again = {name: value.cpu() for name, value in accelerator.get_state_dict(model).items()}
    assert worst(again, state) == 0
# The norm of parts of the host; and fp16, whose flag of overflow is the device's.
expected, _, _ = train(max_norm=0.1)
state, _, _ = train(max_norm=0.1, **fsdp(**FULL, cpu_offload=True))
assert worst(state, expected) < 1e-3, worst(state, expected)
expected, _, _ = train(mixed_precision="fp16")
for fields, bound in ((FULL, 0), ({**FULL, "cpu_offload": True}, 1e-3)):
    state, _, _ = train(mixed_precision="fp16", **fsdp(**fields))
    assert worst(state, expected) <= bound, (fields, worst(state, expected))
# A policy that gathers bf16: the same numbers, whatever is cut.
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy

bf16 = torch.bfloat16
expected, _, _ = train(
    mixed_precision="bf16",
    **fsdp(**HALF, mixed_precision_policy=MixedPrecision(param_dtype=bf16, reduce_dtype=bf16)),
)
state, _, _ = train(
    mixed_precision="bf16",
    **fsdp(
        **FULL, mixed_precision_policy=MixedPrecisionPolicy(param_dtype=bf16, reduce_dtype=bf16)
    ),
)
assert worst(state, expected) == 0, worst(state, expected)
assert all(value.dtype == torch.float32 for name, value in state.items() if "norm" in name)
# Without a stage that cuts it, nothing could move to the host.
for settings in (
    fsdp(sharding_strategy="NO_SHARD", cpu_offload=True),
    deepspeed(0, offload_optimizer_device="cpu"),
    deepspeed(2, offload_param_device="cpu"),
):
    try:
        train(**settings)
    except ValueError as error:
        assert "\n" not in str(error).strip() and "offload" in str(error), error
    else:
        raise AssertionError(f"nothing was refused: {settings}")
print("sharded", accelerator.process_index)
