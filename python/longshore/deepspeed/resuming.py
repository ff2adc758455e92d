"""What of a configuration does not count for a run that is gone on with."""

from ..compression import share_of
from .config import say_once


def say_what_stays(engine, settings):
    """Of a run that is gone on with: what the configuration asks for otherwise."""
    made = engine.state.program["engine"]
    asked = {"moments": settings.moments, "storage": settings.storage, "compress": settings.compress and share_of(settings.compress)}
    other = [f"{key} {made[key]}, and not {value}" for key, value in asked.items() if value is not None and made.get(key, 0.0) != value]
    if engine.how["compute"] != settings.dtype:
        other.append(f"computed in {engine.how['compute']}, and not {settings.dtype}")
    if other:
        say_once(f"{engine.state.path}: goes on as it was made: {'; '.join(other)}")
