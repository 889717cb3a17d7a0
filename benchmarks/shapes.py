# SPDX-License-Identifier: Apache-2.0
"""Sizes of models that benchmarks measure with."""


def bert_base_shapes():
    shapes = [(30522, 768), (512, 768), (2, 768), (768,), (768,)]
    for _ in range(12):
        shapes += [(768, 768), (768,)] * 4
        shapes += [(768,), (768,), (3072, 768), (3072,), (768, 3072), (768,), (768,), (768,)]
    return shapes + [(768, 768), (768,)]
