# SPDX-License-Identifier: Apache-2.0
import os
import sys

import torch
import transformers
from accelerate.state import AcceleratorState
from rows import Rows
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

transformers.logging.set_verbosity_error()


def run(folder, resume=None, **fields):
    AcceleratorState._reset_state(True)
    os.environ.pop("ACCELERATE_USE_FSDP", None)
    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=33,
            hidden_size=16,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
        )
    )
    args = TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        max_steps=6,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        learning_rate=0.01,
        max_grad_norm=1e3,
        save_strategy="steps",
        save_steps=3,
        eval_strategy="steps",
        eval_steps=3,
        disable_tqdm=True,
        **fields,
    )
    trainer = Trainer(model, args, train_dataset=Rows(), eval_dataset=Rows())
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(folder + "/last")
    trainer.accelerator.wait_for_everyone()
    lines = trainer.state.log_history
    losses = [line.get("loss", line.get("eval_loss")) for line in lines]
    return losses[:-1], load_file(folder + "/last/model.safetensors")


expected, weights = run("whole")
for version in sys.argv[1:]:
    fields = dict(fsdp="full_shard auto_wrap", fsdp_config={"version": int(version)})
    for resume in (None, f"sharded{version}/checkpoint-3"):
        losses, found = run(f"sharded{version}", resume, **fields)
        assert losses == expected, (version, resume, losses, expected)
        assert weights.keys() == found.keys()
        assert all(torch.equal(value, found[name]) for name, value in weights.items())
print("trained", os.environ["RANK"])
