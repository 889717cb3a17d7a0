# SPDX-License-Identifier: Apache-2.0
import torch


def refusal(object, name, value):
    kept = getattr(object, name)
    setattr(object, name, value)
    try:
        from accelerate import Accelerator  # noqa: F401
    except ImportError as error:
        print(error)
    setattr(object, name, kept)


refusal(torch, "__version__", "9.9.1+cu999")
if torch.version.cuda:
    refusal(torch.version, "cuda", "8.0")
