# SPDX-License-Identifier: Apache-2.0
import torch
from accelerate import Accelerator


def make():
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def batches():
    torch.manual_seed(4)
    for step in range(12):
        x = torch.randn(8, 16)
        # Steps 3 and 7 overflow in fp16, so that a scaler must leave them out.
        yield x * (1e6 if step in (3, 7) else 1), x[:, :4].argmax(1)


accelerator = Accelerator(mixed_precision="fp16")
net, optimizer = make()
net, optimizer = accelerator.prepare(net, optimizer)
loader = accelerator.prepare(torch.utils.data.DataLoader(list(batches()), batch_size=None))
ours, skipped = [], []
for x, y in loader:
    assert x.is_cuda and y.is_cuda
    out = net(x)
    assert out.dtype == torch.float32
    loss = torch.nn.functional.cross_entropy(out, y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    skipped.append(accelerator.optimizer_step_was_skipped)
    optimizer.zero_grad()
    ours.append(loss.item())

plain, optimizer = make()
plain.cuda()
scaler = torch.amp.GradScaler("cuda")
theirs = []
for x, y in batches():
    with torch.autocast("cuda", torch.float16):
        out = plain(x.cuda())
    loss = torch.nn.functional.cross_entropy(out.float(), y.cuda())
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    theirs.append(loss.item())
assert [i for i, s in enumerate(skipped) if s] == [3, 7], skipped
for a, b in zip(ours, theirs):
    # The same kernels; the norm that clips is summed in another order.
    assert a == b or abs(a - b) <= 1e-5 * abs(b) or (a != a and b != b), (ours, theirs)
print("equal")
