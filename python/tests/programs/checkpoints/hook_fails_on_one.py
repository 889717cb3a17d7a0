# SPDX-License-Identifier: Apache-2.0
import torch
from small_run import accelerator, model

for layout in (None, "accelerate"):
    name = f"state_{layout}"
    accelerator.save_state(name, layout=layout)
    accelerator.wait_for_everyone()
    with torch.no_grad():
        model.weight.fill_(7)

    def spoil(models, folder):
        if accelerator.process_index == 1:
            raise KeyError("mine")

    hook = accelerator.register_load_state_pre_hook(spoil)
    try:
        accelerator.load_state(name)
    except Exception as error:
        print("failed", accelerator.process_index, type(error).__name__, error)
    hook.remove()
    assert torch.equal(model.weight, torch.full((2, 3), 7.0))
    accelerator.load_state(name)
    assert not torch.equal(model.weight, torch.full((2, 3), 7.0))
