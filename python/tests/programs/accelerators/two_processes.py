# SPDX-License-Identifier: Apache-2.0
import pathlib

import torch
from accelerate import Accelerator
from accelerate.utils import (
    ProjectConfiguration,
    broadcast_object_list,
    gather_object,
    pad_across_processes,
    set_seed,
)

accelerator = Accelerator()
rank = accelerator.process_index
assert str(accelerator.distributed_type).endswith("MULTI_CPU")
assert accelerator.use_distributed and not accelerator.multi_device
parts = {}
for size in (7, 1, 4):
    with accelerator.split_between_processes(list(range(size)), apply_padding=True) as part:
        parts[size] = part
assert parts == ({7: [0, 1, 2, 3], 1: [0], 4: [0, 1]}, {7: [4, 5, 6, 6], 1: [0], 4: [2, 3]})[rank]
with accelerator.split_between_processes({"a": (1, 2, 3), "t": torch.arange(3)}) as part:
    assert part["a"] == ((1, 2), (3,))[rank] and part["t"].tolist() == ([0, 1], [2])[rank]
order = []
with accelerator.main_process_first():
    open("first", "a").write(str(rank))
accelerator.wait_for_everyone()
assert open("first").read() == "01"
if rank == 1:
    accelerator.set_trigger()
assert accelerator.check_trigger() and not accelerator.check_trigger()
assert gather_object([rank, "x"]) == [0, "x", 1, "x"]
assert broadcast_object_list([rank, {"k": rank}]) == [0, {"k": 0}]
assert (
    pad_across_processes(torch.ones(1, 1 + rank), dim=1, pad_index=9).tolist()
    == ([[1, 9]], [[1, 1]])[rank]
)
ragged = pad_across_processes(torch.ones(2 + rank, 3 - rank), dim=1, pad_index=-100)
ragged = accelerator.gather(pad_across_processes(ragged, dim=0, pad_index=-1))
assert (
    ragged.shape == (6, 3) and ragged[2].tolist() == [-1] * 3 and ragged[5].tolist() == [1, 1, -100]
)
assert accelerator.reduce(torch.tensor([1.0 + rank]), "mean").item() == 1.5
assert accelerator.reduce({"m": [torch.tensor(rank)]}, "max")["m"][0].item() == 1
nested = accelerator.gather({"a": (torch.tensor(rank), [torch.ones(2, 1) * rank])})
assert nested["a"][0].tolist() == [0, 1] and nested["a"][1][0].flatten().tolist() == [0, 0, 1, 1]

kept = pathlib.Path("run/checkpoints/checkpoint_0")
if rank == 0:
    kept.mkdir(parents=True)
accelerator.wait_for_everyone()
project = ProjectConfiguration("run", automatic_checkpoint_naming=True)
try:
    Accelerator(cpu=True, project_config=project).save_state()
    raise AssertionError("an older checkpoint was written to")
except ValueError as error:
    assert "checkpoint_0 already exists" in str(error)
assert not list(kept.iterdir())


@accelerator.on_last_process
def last():
    return rank


assert last() == (None, 1)[rank]
set_seed(5, device_specific=True)
drawn = accelerator.gather(torch.rand(1))
assert drawn[0] != drawn[1]

data = list(range(7))
loader = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=2))
seen, words = [], []
for batch in loader:
    seen += accelerator.gather_for_metrics(batch).tolist()
    words += accelerator.gather_for_metrics([f"w{i}" for i in batch.tolist()])
assert seen == data, seen
assert words == [f"w{i}" for i in data], words
first = next(iter(accelerator.prepare(torch.utils.data.DataLoader(range(9), batch_size=5))))
assert len(accelerator.gather_for_metrics(first)) == 9

assert accelerator.gather(torch.tensor([1j * rank])).tolist() == [0, 1j]
padded = accelerator.pad_across_processes([torch.ones(1, 1 + rank), torch.tensor(5)], dim=-1)
assert padded[0].tolist() == ([[1, 0]], [[1, 1]])[rank] and padded[1].item() == 5
store = torch.distributed.distributed_c10d._get_default_store()
assert store.timeout.total_seconds() == 600

net = accelerator.prepare(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
accelerator.backward(net(torch.randn(4, 2)).sum())
net.compile(backend="eager")
if rank == 0:
    accelerator.unwrap_model(net)(torch.randn(4, 2))  # alone: nobody is waited for
accelerator.wait_for_everyone()
accelerator.end_training()
net.eval()
net(torch.randn(4, 2))
try:
    accelerator.gather(torch.ones(1))
except ValueError as error:
    assert "shut down" in str(error), error
else:
    raise SystemExit("no error")
print("right", rank, flush=True)
