# SPDX-License-Identifier: Apache-2.0
# Those of torch's that work element by element.

import torch

of_whole = {"Adafactor", "LBFGS", "Muon", "Optimizer", "SparseAdam"}
kinds = [
    kind
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and name not in of_whole
]
assert len(kinds) >= 11, kinds
