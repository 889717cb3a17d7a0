# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from answers import answer

found = {}
for splits in (False, True):
    config = DataLoaderConfiguration(dispatch_batches=True, split_batches=splits)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    for size in (21, 23):
        loader = torch.utils.data.DataLoader(torch.arange(size), batch_size=4)
        loader = accelerator.prepare(loader)
        rests = [skip_first_batches(loader, num) for num in range(len(loader) + 1)]
        rests.append(skip_first_batches(skip_first_batches(loader, 1), 1))
        found[f"{splits} {size}"] = [
            [len(rest), [batch.tolist() for batch in rest]] for rest in (loader, *rests)
        ]
answer(found)
