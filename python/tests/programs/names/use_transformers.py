# SPDX-License-Identifier: Apache-2.0
import sys

import torch
from transformers.utils import is_accelerate_available

assert is_accelerate_available("1.1.0")
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    get_scheduler,
)

torch.manual_seed(0)
config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=32,
    num_labels=2,
)
model = BertForSequenceClassification(config).eval()
model.save_pretrained(sys.argv[1])
loaded = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], num_labels=2).eval()
ids = torch.arange(12).reshape(2, 6)
with torch.no_grad():
    torch.testing.assert_close(
        loaded(input_ids=ids).logits, model(input_ids=ids).logits, rtol=0, atol=0
    )
optimizer = torch.optim.AdamW(loaded.parameters(), lr=1.0)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=4)
loss = loaded(input_ids=ids, labels=torch.tensor([0, 1])).loss
loss.backward()
optimizer.step()
scheduler.step()
assert scheduler.get_last_lr() == [0.75], scheduler.get_last_lr()
from transformers import Trainer, TrainingArguments

assert "accelerate" in sys.modules and Trainer and TrainingArguments and BertModel
import accelerate

print(accelerate.__version__, accelerate.__file__)
