# SPDX-License-Identifier: Apache-2.0
# Run twice by the original's Python: on the original and on this package.

import dataclasses
import inspect
import json
import sys

import accelerate.utils.dataclasses as d
import accelerate.utils.imports as i

enums, options = map(json.loads, sys.argv[1:])


def shown(value):
    return "no default" if value is dataclasses.MISSING else repr(value)


print(
    json.dumps(
        dict(
            file=d.__file__,
            enums={
                name: [
                    [
                        m.name,
                        m.value,
                        str(m),
                        isinstance(m, str),
                        m.value in getattr(d, name) if hasattr(getattr(d, name), "list") else None,
                    ]
                    for m in getattr(d, name)
                ]
                for name in enums
            },
            options={
                name: [
                    [f.name, shown(f.default), shown(f.default_factory)]
                    for f in dataclasses.fields(getattr(d, name))
                ]
                for name in options
            },
            instances={name: repr(getattr(d, name)()) for name in options},
            information=[f.name for f in dataclasses.fields(d.TensorInformation)],
            probes={
                name: bool(probe())
                for name, probe in vars(i).items()
                if name.startswith("is_") and probe.__module__ == i.__name__
            },
            probe_arguments={
                name: [
                    [p.name, repr(p.default)] for p in inspect.signature(probe).parameters.values()
                ]
                for name, probe in vars(i).items()
                if name.startswith("is_") and probe.__module__ == i.__name__
            },
        )
    )
)
