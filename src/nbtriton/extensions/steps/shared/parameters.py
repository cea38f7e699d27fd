"""Parameters of a step: what its configuration says of them, checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def read_parameters(
    config: str, declared: Mapping[str, tuple[str, tuple[Any, ...] | None, str]]
) -> dict[str, Any]:
    """Return the value of each parameter: what the configuration says, or the default.

    A parameter has a list of values if its default has several, separated by commas.
    """
    given = {key: one["string_value"] for key, one in json.loads(config)["parameters"].items()}
    if unknown := {key for key in given if key.islower()} - declared.keys():
        raise ValueError(f"unknown parameter '{min(unknown)}', known are {', '.join(declared)}")
    values = {}
    for name, (default, allowed, _) in declared.items():
        text = given.get(name, default)
        try:
            found = [type(allowed[0])(word) for word in text.split(",")] if allowed else [text]
        except ValueError:
            found = []
        if allowed is None or isinstance(allowed[0], str):
            valid = [x in (allowed or found) for x in found]
        else:
            valid = [allowed[0] <= x <= allowed[1] for x in found]
        if not all(valid) or len(valid) != len(default.split(",")):
            raise ValueError(f"{name} is '{text}', allowed is {allowed}, as in '{default}'")
        values[name] = found if len(found) > 1 else found[0]
    return values
