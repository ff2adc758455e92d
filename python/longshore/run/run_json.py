"""What run.json keeps of a program, as JSON."""

import json
import math

_FLOAT, _INT = "__float__", "__int__"  # numbers that run.json has as text


def program(text):
    """What was recorded."""
    return json.loads(text, object_hook=_number)


def _number(said):
    return float(said[_FLOAT]) if _FLOAT in said else int(said[_INT]) if _INT in said else said


def text(program):
    """An infinity, which a configuration may hold, is none of JSON's numbers, and the file's whole numbers have 64 bits
    with a sign, where a seed has 64 without one: both are text."""
    def known(value):
        if isinstance(value, dict):
            return {k: known(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [known(v) for v in value]
        if isinstance(value, int) and not -2**63 <= value < 2**63:
            return {_INT: str(int(value))}
        return {_FLOAT: str(value)} if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(known(program))
