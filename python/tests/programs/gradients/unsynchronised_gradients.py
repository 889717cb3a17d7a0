# SPDX-License-Identifier: Apache-2.0
import copy
import warnings

import torch
from answers import answer
from ddp_and_ours import accelerator, loss_of, ours

tokens = torch.arange(6)


def backward(model):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        accelerator.backward(loss_of(model(tokens, scale=1.0), tokens))
    return [str(warning.message) for warning in said if "[backward]" in str(warning.message)]


# More forwards than backwards disarm nothing.
ours(tokens, scale=1.0)
said = backward(ours)
sgd = accelerator.prepare(torch.optim.SGD(ours.parameters(), lr=0.1))
sgd.step()
said += backward(ours)
sgd.step()
assert said == [], said
said = backward(accelerator.unwrap_model(ours))
assert len(said) == 1 and "The gradients of 'model' were not synchronised" in said[0], said
assert backward(accelerator.unwrap_model(ours)) == [], "it was said"
said = backward(copy.deepcopy(ours))
assert len(said) == 1 and "does not depend on any prepared model" in said[0], said
assert backward(copy.deepcopy(ours)) == [], "it was said"
answer("said")
