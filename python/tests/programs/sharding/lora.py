# SPDX-License-Identifier: Apache-2.0
import os

import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
rank = int(os.environ["RANK"])


def llama():
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=33,
            hidden_size=16,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=32,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=None,
        )
    )


def adapted():
    base = llama()
    torch.manual_seed(2)
    return get_peft_model(
        base,
        LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False
        ),
    )
