# SPDX-License-Identifier: Apache-2.0
import gc
from pathlib import Path

import torch
from own_engine import HostBytes
from sharded_run import begin, refused

host = HostBytes()


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512))
            for _ in range(16)
        )
        self.tied = self.blocks[3]


class Named(Wide):
    "With a state that C++ does not know."

    def get_extra_state(self):
        return torch.ones(1)

    def set_extra_state(self, state):
        pass


def save(folder, kind, stage, **how):
    "The most that this process's tensors take meanwhile."
    fields = dict(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=1000) if stage else {}
    accelerator = begin(steps=1, **fields)
    torch.manual_seed(1)
    model = accelerator.prepare(kind())
    gc.collect()
    return host.most_during(lambda: accelerator.save_model(model, folder, **how))


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


num_bytes = 16 * 512 * 512 * 4
rank = begin(steps=1).process_index
for number, how in enumerate([{}, {"max_shard_size": "3MB"}]):
    save(f"expected_{number}", Wide, 0, **how)
    most = save(f"sharded_{number}", Wide, 3, **how)
    # Of 16 units one that was gathered, one that goes, and one that the backend lets go.
    assert num_bytes / 32 < most < num_bytes / 4, (most, num_bytes)
    if rank == 0:
        assert contents(f"sharded_{number}") == contents(f"expected_{number}")
        assert ("model.safetensors.index.json" in contents(f"sharded_{number}")) == bool(how)
# What hooks of modules make of it, and pickles, are gathered first.
for name, kind, how in [("extra", Named, {}), ("pickle", Wide, {"safe_serialization": False})]:
    save(f"expected_{name}", kind, 0, **how)
    most = save(f"sharded_{name}", kind, 3, **how)
    if rank == 0:
        assert contents(f"sharded_{name}").keys() == contents(f"expected_{name}").keys()
        assert most > num_bytes / 2, (most, num_bytes)
        if name == "extra":
            assert contents(f"sharded_{name}") == contents(f"expected_{name}")
# What cannot be written leaves no process waiting.
Path(f"file_{rank}").write_text("in the way")
begin(steps=1).wait_for_everyone()


def into_a_file():
    save("file_0", Wide, 3)


refused(into_a_file, "file_0") if rank == 0 else into_a_file()
print("written", rank)
