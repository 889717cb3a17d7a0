# SPDX-License-Identifier: Apache-2.0
"""The facade on one process: arguments, wrappers, errors; on two processes where it matters."""

from __future__ import annotations

import copy
import pickle

import pytest
import ranks
import torch

from accelerate import Accelerator, PartialState
from accelerate.errors import ConfigError, UsageError
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import (
    DDPCommunicationHookType,
    DistributedDataParallelKwargs,
    DistributedType,
    GradientAccumulationPlugin,
    GradScalerKwargs,
)


@pytest.fixture(autouse=True)
def fresh_state():
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def test_one_process_knows_its_place():
    accelerator = Accelerator(cpu=True)
    assert accelerator.device == torch.device("cpu")
    assert accelerator.distributed_type == DistributedType.NO
    assert (accelerator.num_processes, accelerator.process_index) == (1, 0)
    assert accelerator.is_main_process and accelerator.is_last_process
    assert not accelerator.use_distributed and not accelerator.multi_device
    assert PartialState().num_processes == 1


def test_an_argument_that_is_not_there_yet_is_named():
    named = r"\[Accelerator\] The argument megatron_lm_plugin is not supported"
    with pytest.raises(NotImplementedError, match=named):
        Accelerator(megatron_lm_plugin="x")


def test_a_launcher_that_asks_for_more_is_answered(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_MEGATRON_LM", "true")
    with pytest.raises(NotImplementedError, match="ACCELERATE_USE_MEGATRON_LM"):
        Accelerator()


def test_an_unknown_name_is_an_attribute_error():
    accelerator = Accelerator(cpu=True)
    with pytest.raises(AttributeError, match="no attribute 'sav_state'"):
        _ = accelerator.sav_state


def test_bad_values_are_refused_in_one_line():
    with pytest.raises(ValueError):
        Accelerator(mixed_precision="fp12")
    with pytest.raises(ConfigError, match="gradient_accumulation_steps is 0"):
        Accelerator(cpu=True, gradient_accumulation_steps=0)
    plugin = GradientAccumulationPlugin(num_steps=2)
    with pytest.raises(UsageError, match="You can only pass one of"):
        Accelerator(gradient_accumulation_steps=2, gradient_accumulation_plugin=plugin)
    with pytest.raises(UsageError, match="You can only pass one"):
        Accelerator(kwargs_handlers=[GradScalerKwargs(), GradScalerKwargs()])
    with pytest.raises(
        UsageError, match="dataloader_config is of type dict. Pass a DataLoaderConf"
    ):
        Accelerator(dataloader_config={"split_batches": True})
    with pytest.raises(
        UsageError, match="project_config is of type str. Pass a ProjectConfiguration"
    ):
        Accelerator(project_config="run")
    for steps in (2.5, "two", None):
        with pytest.raises(UsageError, match="gradient_accumulation_steps is .* whole number"):
            Accelerator(cpu=True, gradient_accumulation_steps=steps)
    with pytest.raises(UsageError, match=r"The loss is 0.5 \(a number\). Pass the tensor"):
        Accelerator(cpu=True).backward(0.5)


def _with_handler(kind, **fields):
    return lambda: Accelerator(cpu=True, kwargs_handlers=[kind(**fields)])


def _clipped(*arguments):
    return lambda: Accelerator(cpu=True).clip_grad_norm_(*arguments)


_DDP = DistributedDataParallelKwargs
_POWER_SGD = DDPCommunicationHookType.POWER_SGD
WRONG_TYPES = {
    "cpu is .*True or False": lambda: Accelerator(cpu="no"),
    "kwargs_handlers is of type GradScalerKwargs": lambda: Accelerator(
        kwargs_handlers=GradScalerKwargs()
    ),
    "dynamo_plugin is of type dict": lambda: Accelerator(dynamo_plugin={}),
    "parallelism_config is of type dict": lambda: Accelerator(parallelism_config={}),
    "gradient_accumulation_plugin is of type dict": lambda: Accelerator(
        gradient_accumulation_plugin={"num_steps": 2}
    ),
    "sync_each_batch is .*True or False": lambda: Accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(2, sync_each_batch="no")
    ),
    "master_weights is .*True or False": lambda: Accelerator(cpu=True, master_weights="no"),
    'init_scale is "big" .*a number': _with_handler(GradScalerKwargs, init_scale="big"),
    "growth_interval is 1.5 .*a whole number": _with_handler(GradScalerKwargs, growth_interval=1.5),
    "bucket_cap_mb is .*a whole number": _with_handler(_DDP, bucket_cap_mb="many"),
    "find_unused_parameters is .*True or False": _with_handler(_DDP, find_unused_parameters="no"),
    "comm_state_option is .*a dictionary": _with_handler(
        _DDP, comm_hook=_POWER_SGD, comm_state_option=[1]
    ),
    "matrix_approximation_rank is .*a whole number": _with_handler(
        _DDP, comm_hook=_POWER_SGD, comm_state_option={"matrix_approximation_rank": "low"}
    ),
    "max_norm is None .*a number": _clipped([], None),
    r"Got Linear\(.* as a parameter. Pass tensors, such as model.parameters": _clipped(
        torch.nn.Linear(1, 1), 1.0
    ),
    "max_graphs is 0 .*at least 1": lambda: Accelerator(cpu=True).capture(print, max_graphs=0),
}


@pytest.mark.parametrize("message", WRONG_TYPES)
def test_a_wrong_type_is_named_in_the_words_of_python(message):
    with pytest.raises(ValueError, match=rf"^\[\w+\] .*{message}[^\n]*$"):
        WRONG_TYPES[message]()


def test_whole_floats_count_as_whole_numbers():
    Accelerator(cpu=True, kwargs_handlers=[_DDP(bucket_cap_mb=25.0)])


def test_steps_of_accumulation_may_be_text():
    # The original calls int() on them, because command lines contain strings.
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps="4")
    assert accelerator.gradient_accumulation_steps == 4
    accelerator.gradient_accumulation_steps = "3"
    assert accelerator.gradient_accumulation_steps == 3
    assert accelerator.gradient_state.num_steps == 3


def test_a_second_accelerator_must_have_the_precision_of_the_first():
    Accelerator(cpu=True, mixed_precision="bf16")
    Accelerator(cpu=True)
    with pytest.raises(UsageError, match="mixed_precision='no'"):
        Accelerator(cpu=True, mixed_precision="no")


def test_prepare_keeps_the_order_and_passes_other_objects_through():
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    accelerator = Accelerator(cpu=True)
    other = object()
    a, b, c, d, e = accelerator.prepare(scheduler, None, optimizer, other, net)
    assert isinstance(a, AcceleratedScheduler) and a.optimizers == [c]
    assert b is None and d is other
    assert isinstance(c, AcceleratedOptimizer) and isinstance(c, torch.optim.Optimizer)
    assert isinstance(e, torch.nn.Linear)
    assert accelerator.prepare(c) is c and accelerator.prepare(optimizer) is c
    assert accelerator.prepare(a) is a and accelerator.prepare(scheduler) is a
    with pytest.raises(UsageError, match="1 entries for 2 objects"):
        accelerator.prepare(net, optimizer, device_placement=[True])


def test_optimizers_step_at_the_end_of_an_accumulation():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = torch.nn.Linear(1, 1, bias=False)
    net.weight.data.fill_(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    net, optimizer = accelerator.prepare(net, optimizer)
    weights, syncs = [], []
    for x in (1.0, 3.0, 5.0):
        with accelerator.accumulate(net):
            accelerator.backward(net(torch.tensor([[x]])).sum())
            optimizer.step()
            optimizer.zero_grad()
        weights.append(net.weight.item())
        syncs.append(accelerator.sync_gradients)
    # The gradient of the first update is the mean of 1 and 3; 5 waits for the next.
    assert weights == [1, -1, -1] and syncs == [False, True, False]
    assert net.weight.grad.item() == 2.5


def test_schedulers_stop_at_their_end_and_may_count_accumulation():
    def counts(total_steps, with_optimizer=True, adjust=False):
        """How often the schedule advanced, and its count, after each of seven micro-batches."""
        accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=2, step_scheduler_with_optimizer=with_optimizer
        )
        accelerator.gradient_state.plugin_kwargs["adjust_scheduler"] = adjust
        net = torch.nn.Linear(1, 1)
        raw = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9)
        one_cycle = torch.optim.lr_scheduler.OneCycleLR(raw, 1.0, total_steps=total_steps)
        net, optimizer, scheduler = accelerator.prepare(net, raw, one_cycle)
        found = []
        for _ in range(7):
            with accelerator.accumulate(net):
                accelerator.backward(net(torch.ones(1, 1)).sum())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            found.append((one_cycle.last_epoch, one_cycle._step_count))
        return found

    # torch counts the initial state as a step.
    assert counts(2) == [(0, 1), (1, 2), (1, 2), (2, 3), (2, 3), (2, 3), (2, 3)]
    # Every call counts; the schedule has ended before the sixth.
    assert counts(5, adjust=True) == [(0, 2), (1, 3), (1, 4), (2, 5), (2, 6), (2, 6), (2, 7)]
    with pytest.raises(ValueError, match="step 3 times"):
        counts(2, with_optimizer=False)


def test_micro_batches_are_counted_as_the_original_does(tmp_path):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = torch.nn.Linear(1, 1)
    net, loader = accelerator.prepare(net, torch.utils.data.DataLoader(torch.ones(5, 1)))
    counts = []
    for batch in loader:
        with accelerator.accumulate(net):
            accelerator.backward(net(batch).sum())
            counts.append((accelerator.step, accelerator.sync_gradients))
        if len(counts) == 3:
            accelerator.save_state(tmp_path / "state")
    assert counts == [(1, False), (2, True), (3, False), (4, True), (0, True)]
    accelerator.load_state(tmp_path / "state")
    assert accelerator.step == 1
    with accelerator.accumulate(net):
        assert accelerator.step == 2 and accelerator.sync_gradients


def test_a_closure_is_called_and_its_loss_comes_back():
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(1, 1)
    net, optimizer = accelerator.prepare(net, torch.optim.LBFGS(net.parameters(), max_iter=3))
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = (net(torch.ones(1, 1)) - 2).square().sum()
        accelerator.backward(loss)
        calls.append(loss.item())
        return loss

    first = optimizer.step(closure)
    assert first.item() == calls[0] and len(calls) > 1 and calls[-1] < calls[0]


def test_what_a_closure_captures_is_freed():
    import gc
    import weakref

    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(1, 1)
    prepared, optimizer = accelerator.prepare(net, torch.optim.LBFGS(net.parameters(), max_iter=1))

    def closure():
        optimizer.zero_grad()  # noqa: F821, the `del` is below
        loss = prepared(torch.ones(1, 1)).sum()  # noqa: F821
        accelerator.backward(loss)
        return loss

    optimizer.step(closure)
    alive = weakref.ref(net.weight)
    accelerator.free_memory()
    del net, prepared, optimizer, closure
    gc.collect()
    assert alive() is None


def test_copies_of_prepared_optimizers_and_schedulers_are_plain():
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(1, 1)
    plain = torch.optim.AdamW(net.parameters())
    optimizer, scheduler = accelerator.prepare(plain, torch.optim.lr_scheduler.StepLR(plain, 1))
    for copied in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(copied) is torch.optim.AdamW
    assert type(copy.deepcopy(scheduler)) is torch.optim.lr_scheduler.StepLR
    optimizer.step()
    scheduler.step()


def test_an_optimizer_without_gradients_steps_as_torchs_does():
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(1, 1)
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
    optimizer.step()
    optimizer.zero_grad()


def test_backward_takes_the_arguments_of_torch():
    accelerator = Accelerator(cpu=True)
    net = accelerator.prepare(torch.nn.Linear(2, 2, bias=False))
    y = net(torch.ones(1, 2))
    accelerator.backward(y, gradient=torch.ones(1, 2), retain_graph=True)
    accelerator.backward(y.sum())
    assert net.weight.grad.tolist() == [[2, 2], [2, 2]]


def test_an_exception_of_autograd_is_the_users():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise ZeroDivisionError("in backward")

    accelerator = Accelerator(cpu=True)
    net = accelerator.prepare(torch.nn.Linear(2, 1))
    with pytest.raises(ZeroDivisionError, match="in backward"):
        accelerator.backward(Bad.apply(net(torch.ones(1, 2))).sum())


def test_precision_of_the_run_holds_in_autocast():
    from accelerate.utils import AutocastKwargs

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    a = torch.ones(2, 2)
    with accelerator.autocast():
        assert (a @ a).dtype == torch.bfloat16
        with accelerator.autocast(AutocastKwargs(enabled=False)):
            assert (a @ a).dtype == torch.float32
    assert (a @ a).dtype == torch.float32


def test_decorated_functions_run_where_they_should(capsys):
    accelerator = Accelerator(cpu=True)

    @accelerator.on_main_process
    def main():
        return 1

    @accelerator.on_process(process_index=3)
    def third():
        return 3

    # One process runs all of them.
    assert (main(), third()) == (1, 3)
    accelerator.print("once", end="!")
    assert capsys.readouterr().out == "once!"


def test_the_step_state_is_one_for_all():
    GradientState()._set_sync_gradients(False)
    assert not Accelerator(cpu=True).sync_gradients
    GradientState()._set_sync_gradients(True)


def test_attributes_after_a_reset_hint_at_it():
    state = PartialState(cpu=True)
    PartialState._reset_state()
    with pytest.raises(AttributeError, match="_reset_state"):
        _ = state.device


def test_clipping_gives_the_bits_of_torchs():
    accelerator = Accelerator(cpu=True)
    net = accelerator.prepare(torch.nn.Linear(3, 2))
    for seed in range(50):
        torch.manual_seed(seed)
        twins = [torch.nn.Parameter(parameter.detach()) for parameter in net.parameters()]
        for parameter, twin in zip(net.parameters(), twins):
            parameter.grad = torch.randn_like(parameter)
            twin.grad = parameter.grad.clone()
        norm = accelerator.clip_grad_norm_(net.parameters(), 0.01)
        assert torch.equal(norm, torch.nn.utils.clip_grad_norm_(twins, 0.01))
        for parameter, twin in zip(net.parameters(), twins):
            assert torch.equal(parameter.grad, twin.grad), seed


def test_two_processes_share_what_they_have(tmp_path):
    out = ranks.fork_ours("accelerators/two_processes.py", tmp_path)
    assert "right 0" in out and "right 1" in out


def test_a_fused_optimizer_takes_the_flag_of_the_scaler():
    """For a model with several parameters; torch's scaler passes a 0-dimensional tensor."""
    from accelerate.optimizer import _Adapter

    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, fused=True)
    before = net.weight.detach().clone()
    for overflow, steps in ((1.0, 0), (0.0, 1)):
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        _Adapter(optimizer).step(torch.full((1,), overflow))
        assert optimizer.state[net.weight]["step"].item() == steps
        assert torch.equal(net.weight, before) == bool(overflow)
