# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from answers import answer
from datasets import Dataset

config = DataLoaderConfiguration(dispatch_batches=False)
accelerator = Accelerator(cpu=True, dataloader_config=config)
rows = Dataset.from_dict({"x": list(range(16))})
found = []
for num_shards in (4, 1):
    stream = rows.to_iterable_dataset(num_shards=num_shards).with_format("torch")
    loader = accelerator.prepare(torch.utils.data.DataLoader(stream, batch_size=2))
    found.append([batch["x"].tolist() for batch in loader])
answer(found)
