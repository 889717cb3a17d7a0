# SPDX-License-Identifier: Apache-2.0
import collections
import pickle

import torch
from accelerate import debug_launcher

Batch = collections.namedtuple("Batch", "rows")


class Settings:
    pass


def collate(rows):
    return Batch(torch.tensor(rows))


def main(settings):
    pickle.loads(pickle.dumps([settings, collate, main]))
    loader = torch.utils.data.DataLoader(
        [1, 2, 3, 4], 2, collate_fn=collate, num_workers=1, timeout=50
    )
    return [batch.rows.tolist() for batch in loader]


if __name__ == "__main__":
    print(debug_launcher(main, (Settings(),)))
