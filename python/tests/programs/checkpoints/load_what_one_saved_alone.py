# SPDX-License-Identifier: Apache-2.0
import warnings

import torch
from small_run import accelerator, loader, model, optimizer

for name, num_left in (("together", 1), ("alone", 3)):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator.load_state(name, restore_loaders=True)
    said = [str(w.message) for w in caught if "[load_state]" in str(w.message)]
    missing = name == "alone" and accelerator.process_index == 1
    assert len(said) == missing, said
    assert all("has no data from rank 1" in line for line in said), said
    # Steps: the second time an engine loads that has begun.
    batches = list(loader)
    assert len(batches) == num_left, name
    for batch in batches:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
weights = accelerator.gather(model.weight.detach().reshape(1, -1))
assert torch.equal(weights[0], weights[1])
print("equal", accelerator.process_index)
