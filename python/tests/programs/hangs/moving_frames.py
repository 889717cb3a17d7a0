# SPDX-License-Identifier: Apache-2.0
# Finalizers in one thread's collections let the other one run, whose frames differ in size, so that
# the memory of a freed frame contains something else.

import gc
import sys
import threading
import time

from accelerate._process import stacks as _stacks

main = threading.get_ident()


class Knot:
    def __init__(self):
        self.me = self

    def __del__(self):
        if threading.get_ident() != main:
            time.sleep(0.0002)


num_calls = 0
lines = []
for size in range(12):
    lines += [f"def f{size}(depth):"]
    lines += [f"    v{number} = depth + {number}.5" for number in range(3 * size)]
    lines += ["    if depth: return functions[(depth * 7 + num_calls) % 12](depth - 1)"]
    lines += ["    if num_calls % 20 == 0: Knot()"]
exec("\n".join(lines))
functions = [globals()[f"f{size}"] for size in range(12)]
is_over = False
looks = []


def look():
    while not is_over:
        looks.append(_stacks._take_stack()[0][-1][0])


gc.set_threshold(5)
sys.setswitchinterval(1e-5)
looker = threading.Thread(target=look)
looker.start()
while len(looks) < 5000 and looker.is_alive():
    for depth in range(1, 30):
        functions[num_calls % 12](depth)
        num_calls += 1
is_over = True
gc.disable()
looker.join()
print(len(looks) >= 5000, {look.partition(" in ")[2].partition(":")[0] for look in looks})
