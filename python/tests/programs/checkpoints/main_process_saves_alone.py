# SPDX-License-Identifier: Apache-2.0
from small_run import accelerator, loader, model, optimizer

accelerator.register_save_state_pre_hook(lambda m, w, folder: None)
for number, batch in enumerate(loader):
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    if accelerator.is_main_process and number == 2:
        accelerator.save_state("alone")
        # Rank 1 is in the next step's collective by now, or will be: nobody waits in between.
    if number == 4:
        accelerator.save_state("together")
print("done", accelerator.process_index)
