# SPDX-License-Identifier: Apache-2.0
"""One side of python_step.py: the same loops with whichever package
`accelerate` this Python finds.

  python_step_peer.py added CASE     microseconds per step over plain PyTorch
  python_step_peer.py shared MODEL   milliseconds per step, several processes
  python_step_peer.py trainer NUM    microseconds per step of transformers'
                                     Trainer in NUM processes
"""
import statistics
import sys
import time

# This folder has a safetensors.py of its own.
sys.path.pop(0)
import torch  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

STEPS, ROUNDS = 200, 25
WARM_UP, SHARED_STEPS = 20, {"tiny": 1000, "mlp": 80}
loss_of = nn.functional.mse_loss


def parts():
    torch.manual_seed(0)
    model = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(8 * STEPS, 32)
    loader = DataLoader(TensorDataset(data, data), batch_size=8, shuffle=True)
    return model, optimizer, loader


def plain(batches, model, optimizer):
    for x, y in batches:
        loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def accelerated(accelerator, batches, model, optimizer):
    for x, y in batches:
        accelerator.backward(loss_of(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


def plain_scheduled(batches, model, optimizer, scheduler):
    for x, y in batches:
        loss_of(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def scheduled(accelerator, batches, model, optimizer, scheduler):
    for x, y in batches:
        accelerator.backward(loss_of(model(x), y))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def plain_accumulated(batches, model, optimizer):
    for number, (x, y) in enumerate(batches, 1):
        (loss_of(model(x), y) / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def accumulated(accelerator, batches, model, optimizer):
    for x, y in batches:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model(x), y))
            optimizer.step()
            optimizer.zero_grad()


def with_scheduler(model, optimizer, loader):
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return model, optimizer, loader, scheduler


def loops(case):
    """The plain loop and the accelerated one, ready to run."""
    accelerator = Accelerator(
        gradient_accumulation_steps=4 if case == "accumulate" else 1)
    if case == "scheduler":
        model, optimizer, loader, scheduler = with_scheduler(*parts())
        ours = accelerator.prepare(*with_scheduler(*parts()))
        return (lambda: plain_scheduled(loader, model, optimizer, scheduler),
                lambda: scheduled(
                    accelerator, ours[2], ours[0], ours[1], ours[3]))
    model, optimizer, loader = parts()
    ours = parts()
    if case == "no_loader":
        batches = list(loader)
        net, opt = accelerator.prepare(*ours[:2])
        return (lambda: plain(batches, model, optimizer),
                lambda: accelerated(accelerator, batches, net, opt))
    net, opt, own = accelerator.prepare(*ours)
    loop, own_loop = {
        "loader": (plain, accelerated),
        "accumulate": (plain_accumulated, accumulated),
    }[case]
    return (lambda: loop(loader, model, optimizer),
            lambda: own_loop(accelerator, own, net, opt))


def seconds_of(function):
    # Of the processor: others on this machine do not count.
    start = time.process_time()
    function()
    return time.process_time() - start


def measure_added(case):
    base, own = loops(case)
    base(), own()
    times = [(seconds_of(base), seconds_of(own)) for _ in range(ROUNDS)]
    base, own = (min(side) / STEPS * 1e6 for side in zip(*times))
    print(base, own - base)


def measure_shared(name):
    accelerator = Accelerator()
    if accelerator.num_processes != 2:
        raise SystemExit("[python_step] the processes are not connected")
    torch.manual_seed(0)
    model = nn.Linear(32, 32) if name == "tiny" else nn.Sequential(
        nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
    data = torch.randn(8, 32 if name == "tiny" else 1024)
    model, optimizer = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1e-3))
    times = []
    for step in range(-WARM_UP, SHARED_STEPS[name]):
        start = time.perf_counter()
        accelerator.backward(loss_of(model(data), data))
        optimizer.step()
        optimizer.zero_grad()
        if step >= 0:
            times.append((time.perf_counter() - start) * 1e3)
    # The fastest tenth: what others do on this machine only adds.
    accelerator.print(statistics.quantiles(times, n=10)[0])
    accelerator.end_training()


class Regression(nn.Linear):
    """What Trainer calls: names of columns in, a loss out."""

    def forward(self, x, labels):
        return {"loss": loss_of(super().forward(x), labels)}


def measure_trainer(num_processes):
    # Not needed by the other cases, and slow to import.
    import tempfile

    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        times = []

        def on_step_end(self, *_, **__):
            self.times.append(time.perf_counter() * 1e6)

    data = torch.randn(8 * STEPS, 32)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            Regression(32, 32),
            TrainingArguments(
                folder, use_cpu=True, disable_tqdm=True, report_to="none",
                logging_strategy="no", save_strategy="no",
                per_device_train_batch_size=8, max_steps=5 * STEPS),
            train_dataset=[{"x": row, "labels": row} for row in data],
            callbacks=[Clock])
        if trainer.args.world_size != int(num_processes):
            raise SystemExit("[python_step] the processes are not connected")
        trainer.train()
    steps = [end - begin for begin, end in zip(Clock.times, Clock.times[1:])]
    if trainer.is_world_process_zero():
        print(statistics.quantiles(steps[WARM_UP:], n=10)[0])


torch.set_num_threads(1)
{
    "added": measure_added,
    "shared": measure_shared,
    "trainer": measure_trainer,
}[sys.argv[1]](sys.argv[2])
