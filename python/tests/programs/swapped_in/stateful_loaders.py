# SPDX-License-Identifier: Apache-2.0
import copy
import pickle
import sys
import warnings

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import DataLoaderShard
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

warnings.simplefilter("error")
warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # torchdata's, with torch 2.15
for is_stateful in (False, True):
    config = DataLoaderConfiguration(use_stateful_dataloader=is_stateful)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    for kind in (DataLoader, StatefulDataLoader):
        loader = accelerator.prepare(kind(torch.arange(12), batch_size=2))
        for found in (loader, loader.base_dataloader, copy.copy(loader)):
            kinds = (DataLoader, StatefulDataLoader, DataLoaderShard)
            print([isinstance(found, kind) for kind in kinds], [b.tolist() for b in found])
if "pickle" in sys.argv:
    rest = skip_first_batches(loader, 2)
    again = pickle.loads(pickle.dumps(rest))
    print(
        isinstance(rest, StatefulDataLoader),
        isinstance(again, StatefulDataLoader),
        len(list(again)),
    )
