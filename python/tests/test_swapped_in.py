# SPDX-License-Identifier: Apache-2.0
"""What libraries written for the original do with prepared objects."""

from __future__ import annotations

import copy
import os
import pickle

import pytest
import ranks
import torch
from both_packages import python_with
from original import PROGRAMS, run_python

from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from accelerate.utils.modeling import get_mixed_precision_context_manager
from accelerate.utils.operations import DistributedOperationException


@pytest.fixture(autouse=True)
def fresh_state():
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("evaluation_mode", [True, False])
def test_alone_the_module_itself_is_prepared(precision, evaluation_mode):
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    net = torch.nn.Linear(2, 2)
    assert accelerator.prepare_model(net, evaluation_mode=evaluation_mode) is net
    assert accelerator._models == [net] and accelerator.prepare(net) is net
    assert accelerator.unwrap_model(net) is net
    assert isinstance(net, torch.nn.Linear) and net.__class__ is torch.nn.Linear
    with accelerator.accumulate(net):
        accelerator.backward(net(torch.ones(1, 2)).sum())
    copied = copy.deepcopy(net)
    assert type(copied) is torch.nn.Linear and type(pickle.loads(pickle.dumps(net))) is type(copied)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_what_was_evaluated_trains_together_later(tmp_path, precision):
    program = "swapped_in/early_evaluation.py"
    for is_itself, is_net, is_listed, gradient in ranks.run_ours(program, tmp_path, precision):
        assert is_itself and not is_net and is_listed
        # The mean of 1 and 2; in the original ranks diverge, because the second call is ignored.
        assert gradient == 1.5


def test_a_prepared_module_of_several_processes_has_what_ddp_has(tmp_path):
    for rank, found in enumerate(ranks.run_ours("swapped_in/as_of_ddp.py", tmp_path)):
        own = 1.0 + rank
        # Each rank accumulates its gradient of 1 or 2 twice: the mean of 2 and 4.
        assert found == [True, True, True, False, True, own, 3.0, own]


def test_the_original_constructors():
    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(1, 1)
    inner = torch.optim.SGD(net.parameters(), lr=1.0)
    optimizer = AcceleratedOptimizer(inner, device_placement=True, scaler=None)
    scheduler = AcceleratedScheduler(
        torch.optim.lr_scheduler.StepLR(inner, 1, 0.5), optimizer, split_batches=True
    )
    assert optimizer.scaler is None and optimizer.device_placement
    assert optimizer.gradient_state.sync_gradients and scheduler.split_batches
    assert optimizer.accelerator_state.mixed_precision == "no"
    before = net.weight.item()
    net(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    scheduler.step()
    assert net.weight.item() == pytest.approx(before - 1) and scheduler.get_last_lr() == [0.5]
    accelerator.gradient_state._set_sync_gradients(False)
    optimizer.step()
    assert net.weight.item() == pytest.approx(before - 1)


# --- loaders ----------------------------------------------------------------------------------


def loader_of(accelerator, **settings):
    rows = torch.arange(12)
    return accelerator.prepare(torch.utils.data.DataLoader(rows, batch_size=2, **settings))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_resumes_from_its_state(shuffle, num_workers):
    config = DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    loader = loader_of(accelerator, shuffle=shuffle, num_workers=num_workers)
    list(loader)
    seen = []
    for number, batch in enumerate(loader):
        seen.append(batch.tolist())
        if number == 2:
            state = pickle.loads(pickle.dumps(loader.state_dict()))
    torch.manual_seed(99)
    again = loader_of(accelerator, shuffle=shuffle, num_workers=num_workers)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == seen[3:]
    assert len(list(again)) == 6


def test_the_loader_inside_is_torchs():
    accelerator = Accelerator(cpu=True)
    loader = loader_of(accelerator)
    inner = loader.base_dataloader
    assert type(inner) is torch.utils.data.DataLoader and inner.dataset is loader.dataset
    assert [batch.tolist() for batch in inner] == [batch.tolist() for batch in loader]


def test_a_loader_with_a_state_is_torchdatas():
    python = str(python_with("libraries"))
    program = PROGRAMS / "swapped_in/stateful_loaders.py"
    ours = run_python(program, "pickle", python=python, path=os.environ["PYTHONPATH"])
    original = run_python(program, python=python)
    # The original's cannot be pickled, and loses its class where batches are skipped.
    assert ours == original + "True True 4\n"


SHARDED = "swapped_in/sharded_stream.py"


def test_files_of_a_stream_are_dealt_out(tmp_path):
    pytest.importorskip("datasets")
    assert ranks.run_ours(SHARDED, tmp_path) == ranks.run_original(SHARDED, tmp_path)


def test_the_originals_exception_is_raised_where_values_differ(tmp_path):
    assert ranks.run_ours("swapped_in/other_shapes.py", tmp_path) == ["MismatchError"] * 2
    assert issubclass(DistributedOperationException, Exception)


def test_the_precision_of_the_run_can_be_asked_for():
    Accelerator(cpu=True, mixed_precision="bf16")
    with get_mixed_precision_context_manager(native_amp=True):
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    with get_mixed_precision_context_manager():
        assert not torch.is_autocast_enabled("cpu")
