# SPDX-License-Identifier: Apache-2.0
"""Scores random predictions with scikit-learn, for tests/accelerator/metrics_test.cpp.

    python tools/make_metrics_reference.py tests/reference/metrics.json

Two cases, with two classes and with four, of which one is never predicted: 101
predictions and labels, and what scikit-learn 1.x says of them.
"""
import json
import random
import sys

from sklearn.metrics import accuracy_score, f1_score

draw = random.Random(7)
cases = []
for num_classes, averages in ((2, ("binary", "macro", "micro", "weighted")),
                              (4, ("macro", "micro", "weighted"))):
    labels = [draw.randrange(num_classes) for _ in range(101)]
    predictions = [
        label if draw.random() < 0.6 else draw.randrange(min(num_classes, 3)) for label in labels]
    predictions = [min(prediction, 2) for prediction in predictions]
    classes = list(range(num_classes))
    cases.append({
        "num_classes": num_classes,
        "labels": labels,
        "predictions": predictions,
        "accuracy": accuracy_score(labels, predictions),
        "f1": {average: f1_score(labels, predictions, average=average, zero_division=0,
                                 **({} if average == "binary" else {"labels": classes}))
               for average in averages},
    })
with open(sys.argv[1], "w") as file:
    json.dump(cases, file)
    file.write("\n")
