# SPDX-License-Identifier: Apache-2.0
from accelerate.launchers import debug_launcher

batches = (i for i in range(3))


def train():
    return list(batches)


try:
    debug_launcher(train)
except TypeError as error:
    print(error)
