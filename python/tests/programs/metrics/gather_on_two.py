# SPDX-License-Identifier: Apache-2.0
import functools
import warnings

import torch
from accelerate import Accelerator
from accelerate.state import GradientState
from accelerate.utils import DataLoaderConfiguration, gather_object
from answers import answer
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, WeightedRandomSampler


class Count(IterableDataset):
    def __iter__(self):
        return iter(range(20))


class Lengths:
    """Batches of 1, 2, 3 and 4 samples, and one of 10."""

    def __len__(self):
        return 5

    def __iter__(self):
        return iter([[0], [1, 2], [3, 4, 5], [6, 7, 8, 9], list(range(10, 20))])


numbers = torch.arange(98)


def epoch(loader, **options):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    loader = accelerator.prepare(loader)
    ids, losses, words, rows = [], 0, [], []
    for batch in loader:
        ids += accelerator.gather_for_metrics(batch).tolist()
        rows += accelerator.gather_for_metrics(batch.numpy())
        words += accelerator.gather_for_metrics([str(i) for i in batch.tolist()])
        losses += len(accelerator.gather_for_metrics(torch.ones(1).repeat(8)))
        remainder = GradientState().remainder
    assert words == [str(i) for i in ids]
    assert rows == ids
    assert loader.remainder == remainder
    return [sorted(ids), losses, remainder]


subset = lambda: SubsetRandomSampler(range(20))
found = {
    "subset": epoch(DataLoader(numbers, 8, sampler=subset())),
    "weighted": epoch(DataLoader(numbers, 8, sampler=WeightedRandomSampler([1.0] * 20, 20, False))),
    "uneven": epoch(DataLoader(numbers[:28], 8), even_batches=False),
    "split": epoch(DataLoader(numbers, 16, sampler=subset()), split_batches=True),
    "dispatched": epoch(DataLoader(numbers, 8, sampler=subset()), dispatch_batches=True),
    "workers": epoch(DataLoader(numbers, 8, sampler=subset(), num_workers=2)),
    "stream": epoch(DataLoader(Count(), 8)),
    "stream read by all": epoch(DataLoader(Count(), 8), dispatch_batches=False),
    "end dropped": epoch(DataLoader(numbers, 8, sampler=subset(), drop_last=True)),
    "full": epoch(DataLoader(numbers[:32], 8)),
}
accelerator = Accelerator(cpu=True)
found["varying"] = [
    accelerator.gather_for_metrics(batch).tolist()
    for batch in accelerator.prepare(DataLoader(numbers, batch_sampler=Lengths()))
]
rank = accelerator.process_index


def packed(loader):
    """What is gathered of batches that are packed into rows of two tokens for each sample."""
    tokens, ones = [], 0
    for batch in accelerator.prepare(loader):
        tokens.append(accelerator.gather_for_metrics(batch).tolist())
        ones += len(accelerator.gather_for_metrics(["text"] * (len(batch) + 1)))
    return [tokens, ones]


def pack(samples):
    return torch.tensor(samples).repeat_interleave(2)


found["packed"] = packed(DataLoader(numbers, batch_sampler=Lengths(), collate_fn=pack))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    found["partly repeated"] = packed(DataLoader(numbers[:5], 2, collate_fn=pack))
    found["warnings"] = [str(w.message) for w in caught if "repeat" in str(w.message)]


def of_ranks(first, second, gather=accelerator.gather_for_metrics):
    """What comes of these values, or of the error."""
    try:
        return gather((first, second)[rank])
    except Exception as error:
        return f"{type(error).__name__}: {error}"


cannot = lambda: None
objects = functools.partial(accelerator.gather_for_metrics, use_gather_object=True)
found["ranks"] = {
    "some and none": of_ranks(["a"], []),
    "none and some": of_ranks([], [("b", 2), None]),
    "none": of_ranks([], []),
    "empty lists": of_ranks([[], []], [[], []]),
    "empty dictionaries": of_ranks([{}, {}], [{}]),
    "empty samples": of_ranks(([], {}), [{"a": []}]),
    "some empty": of_ranks([["PER"], []], [[], []]),
    "tensors and empty lists": of_ranks([[torch.ones(1)], []], [[], []]),
    "empty dictionary": of_ranks({"a": []}, {"a": []}),
    "many and one": of_ranks(["a"] * 5000, ["b"])[4998:],
    "tensor and text": of_ranks(torch.ones(2), "text"),
    "list and dictionary": of_ranks([torch.ones(1)], {"k": torch.ones(1)}),
    "tensors and none": of_ranks([torch.ones(1)], []),
    "rows": [row.tolist() for row in of_ranks(torch.ones(1, 1), torch.zeros(1, 1), objects)],
    "unpicklable": of_ranks(["a"], [cannot]),
    "both unpicklable": of_ranks([cannot], [cannot], gather_object),
    "gathered text": of_ranks(torch.ones(1), "text", accelerator.gather),
    "reduced text": of_ranks(torch.ones(1), ["text"], accelerator.reduce),
    "reduction": of_ranks("sum", "product", lambda how: accelerator.reduce(torch.ones(1), how)),
    "tensors and objects": of_ranks(
        torch.ones(1), ["b"], lambda v: (gather_object if rank else accelerator.gather)(v)
    ),
    "undivided": of_ranks(
        torch.ones(1), torch.ones(1), lambda v: accelerator.reduce(v, "none")
    ).tolist(),
    "after": accelerator.gather_for_metrics(torch.tensor([rank])).tolist(),
}
answer(found)
