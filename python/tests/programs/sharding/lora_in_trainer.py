# SPDX-License-Identifier: Apache-2.0
import os
import sys

import torch
from accelerate.state import AcceleratorState
from lora import adapted, llama, rank
from peft import PeftModel
from rows import Rows
from transformers import Trainer, TrainingArguments


def run(folder, resume=None, **fields):
    AcceleratorState._reset_state(True)
    for name in [name for name in os.environ if "FSDP" in name]:
        del os.environ[name]
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=2,
        max_steps=4,
        save_steps=2,
        seed=3,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        learning_rate=0.01,
        disable_tqdm=True,
        **fields,
    )
    trainer = Trainer(model=adapted(), args=args, train_dataset=Rows())
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(folder)
    if rank == 0:
        return PeftModel.from_pretrained(llama(), folder).state_dict()


plain = run("plain")
fields = dict(
    fsdp="full_shard auto_wrap",
    fsdp_config={"version": int(sys.argv[1]), "state_dict_type": "FULL_STATE_DICT"},
)
first = run("first", **fields)
again = run("again", resume="first/checkpoint-2", **fields)
if rank == 0:
    # The adapter alone.
    assert len(torch.load("first/checkpoint-2/pytorch_model_fsdp.bin")) == 8
    for name, value in plain.items():
        assert torch.equal(first[name], value), name
        assert torch.equal(again[name], value), ("resumed", name)
print("adapted", rank)
