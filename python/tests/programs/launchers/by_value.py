# SPDX-License-Identifier: Apache-2.0
from accelerate.launchers import debug_launcher

factor = 3


class Point:
    def __init__(self, x):
        self.x = x

    def scaled(self):
        return Point(self.x * factor)


def make(offset):
    return lambda x: Point(x + offset).scaled()


point = debug_launcher(make(10), (4,))
print(isinstance(point, Point), point.x)
