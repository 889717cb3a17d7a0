# SPDX-License-Identifier: Apache-2.0
"""Sharded training from Python: the original's plugin, training, and saving. Two processes add two
gradients and halve the sum, so weights are bit-identical to those of data parallel training."""

from __future__ import annotations

import json
import runpy
import textwrap
import warnings
from pathlib import Path

import pytest
import ranks
import torch
from both_packages import ours_with_libraries
from tiers import cases

from accelerate import Accelerator
from accelerate.state import AcceleratorState


def test_training_equals_data_parallel_training(tmp_path):
    pytest.importorskip("transformers")
    out = ranks.fork_ours("sharding/as_data_parallel.py", tmp_path)
    assert "equal 0" in out and "equal 1" in out


def test_training_is_near_pytorchs_fsdp2(tmp_path):
    out = ranks.fork_ours("sharding/near_fsdp2.py", tmp_path)
    assert "near 0" in out and "near 1" in out


def test_what_is_saved_is_whole(tmp_path):
    out = ranks.fork_ours("sharding/what_is_saved.py", tmp_path)
    assert "saved 0" in out and "saved 1" in out
    whole = torch.load(tmp_path / "whole.pt")
    # On one process, without a plugin.
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    net = runpy.run_path(str(ranks.PROGRAMS / "sharding/small_net.py"))["Net"]
    model = net()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0},
    ]
    model, _ = accelerator.prepare(model, torch.optim.AdamW(groups))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accelerator.load_state(tmp_path / "run")
    assert all(torch.equal(value, whole[name]) for name, value in model.state_dict().items())
    from safetensors.torch import load_file

    written = load_file(tmp_path / "whole" / "model.safetensors")
    assert all(torch.equal(value, whole[name]) for name, value in written.items())
    assert not (tmp_path / "other").exists()


def test_compiled_models_are_refused_where_parameters_are_cut(tmp_path):
    out = ranks.fork_ours("sharding/compiled_models.py", tmp_path)
    assert "compiled 0" in out and "compiled 1" in out


# A single process has whole parameters.
RESUME = "sharding/other_number_of_processes.py"


@pytest.mark.parametrize("stage", cases(["3", "2"], small=["3"]))
def test_a_run_resumes_with_a_different_number_of_processes(tmp_path, stage):
    every = [(saved, loaded) for saved in range(1, 5) for loaded in range(1, 5)]
    pairs = cases(every, small=[(2, 1), (1, 2), (3, 2), (2, 3), (2, 2)])
    for num in sorted({saved for saved, _ in pairs}):
        ranks.fork_ours(RESUME, tmp_path, stage, "save", num_ranks=num)
    for num in sorted({loaded for _, loaded in pairs}):
        froms = [str(saved) for saved, loaded in pairs if loaded == num]
        out = ranks.fork_ours(RESUME, tmp_path, stage, "load", *froms, num_ranks=num)
        assert f"done {num}" in out


def test_gradients_stay_when_a_backward_raises(tmp_path):
    """As in torch on one process: gradients of earlier micro-batches, and those that had
    arrived."""
    out = ranks.fork_ours("sharding/backward_that_raises.py", tmp_path)
    assert "trained 0" in out and "trained 1" in out


def test_optimizers_that_look_at_single_numbers_train_as_without_sharding(tmp_path):
    out = ranks.fork_ours("sharding/updates_of_every_optimizer.py", tmp_path)
    assert "updated 0" in out and "updated 1" in out


def test_state_of_every_such_optimizer_is_loaded(tmp_path):
    out = ranks.fork_ours("sharding/state_of_every_optimizer.py", tmp_path)
    assert "resumed 0" in out and "resumed 1" in out


def test_weights_are_those_that_were_saved_right_after_loading(tmp_path):
    out = ranks.fork_ours("sharding/weights_after_loading.py", tmp_path)
    assert "loaded 0" in out and "loaded 1" in out


def test_a_sharded_model_is_written_unit_by_unit(tmp_path):
    out = ranks.fork_ours("sharding/write_unit_by_unit.py", tmp_path)
    assert "written 0" in out and "written 1" in out


def test_trainer_shards_and_resumes(tmp_path):
    """The last line of its history has the mean of the losses since the start."""
    pytest.importorskip("transformers")
    versions = cases(["1", "2"], small=["2"])
    out = ranks.fork_ours("sharding/trainer.py", tmp_path, *versions)
    assert "trained 0" in out and "trained 1" in out


def check_lora(folder: Path, script: str, *arguments: str) -> None:
    out = ours_with_libraries("trainer.py").run(script, folder, *arguments)
    assert "adapted 0" in out and "adapted 1" in out


def test_lora_trains_generates_and_is_saved(tmp_path):
    check_lora(tmp_path, "sharding/lora_loop.py")


@pytest.mark.parametrize("version", cases(["1", "2"], small=["2"]))
def test_lora_in_a_trainer_resumes(tmp_path, version):
    check_lora(tmp_path, "sharding/lora_in_trainer.py", version)


# --- the plugin -------------------------------------------------------------------------------

# Variables and arguments; both packages return fields, or the kind of their exception.
FIELDS = "sharding/plugin_fields.py"


def test_fields_and_variables_are_read_as_the_original_does(tmp_path):
    def answers(output: str) -> list:
        return json.loads(output.splitlines()[-1])

    theirs = answers(ranks.fork_original(FIELDS, tmp_path, num_ranks=1))
    assert answers(ranks.fork_ours(FIELDS, tmp_path, num_ranks=1)) == theirs
    assert len(theirs) == 19 and theirs.count("ValueError") == 10


def test_state_of_before_the_first_step_is_cut(tmp_path):
    out = ranks.fork_ours("sharding/state_before_first_step.py", tmp_path)
    assert "took 0" in out and "took 1" in out


def test_what_cannot_be_right_is_refused_in_one_line(tmp_path):
    # What the original's `accelerate config` writes, overridden by a flag.
    (tmp_path / "config.yaml").write_text(
        textwrap.dedent("""
            compute_environment: LOCAL_MACHINE
            distributed_type: FSDP
            fsdp_config:
              fsdp_activation_checkpointing: false
              fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
              fsdp_reshard_after_forward: true
              fsdp_state_dict_type: SHARDED_STATE_DICT
              fsdp_transformer_layer_cls_to_wrap: Block
              fsdp_version: 2
            num_processes: 2
            use_cpu: true
        """)
    )
    launch = ["accelerate", "launch", "--config_file", str(tmp_path / "config.yaml")]
    launch += ["--fsdp_activation_checkpointing", "true"]
    out = ranks.check(ranks.run(launch, tmp_path, "sharding/refusals.py"))
    assert "refused 0" in out and "refused 1" in out


def test_exceptions_have_one_class_on_every_path(tmp_path):
    """Through operators, autograd and bindings, which torch's own turn into a RuntimeError."""
    assert "kinds are kept" in ranks.fork_ours("sharding/kinds_of_exceptions.py", tmp_path)


def test_stage_3_works_with_another_default_dtype(tmp_path):
    assert ranks.run_ours("sharding/other_default_dtype.py", tmp_path) == ["torch.float64"] * 2


def test_a_hybrid_strategy_has_a_copy_on_each_machine(tmp_path):
    """Four processes that simulate two machines with two each."""
    out = ranks.fork_ours("sharding/hybrid_strategy.py", tmp_path, num_ranks=4)
    assert sorted(line for line in out.splitlines() if line.startswith("alike")) == [
        f"alike {rank}" for rank in range(4)
    ]
