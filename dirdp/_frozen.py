"""The base of what makes up a plan: frozen, without unknown keys, and nothing guessed."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Frozen(BaseModel):
    """A frozen model that knows all its keys and takes no value of another type."""

    # JSON as Python writes and reads it: epsilon = Infinity survives the way to a worker.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    @field_validator("*", mode="before")
    @classmethod
    def _no_guess(cls, value: Any, field: ValidationInfo) -> Any:
        """Pydantic would take True and "1" for 1, and 1 and "yes" for True."""
        kind = cls.model_fields[str(field.field_name)].annotation
        takes_text = kind is str or get_origin(kind) is Literal
        if isinstance(value, bool) != (kind is bool) or (isinstance(value, str) and not takes_text):
            raise ValueError(f"expected {_expected(kind)}, got {value!r}")
        return value


def _expected(kind: Any) -> str:
    """What a field takes, in the words of a search space.

    >>> _expected(float | None), _expected(bool), _expected(Literal["batch", "group"])
    ('a number', 'true or false', 'batch or group')
    """
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    words = {float: "a number", int: "an integer", bool: "true or false", str: "a name", tuple: "a list"}
    for part in (kind, get_origin(kind), *get_args(kind)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return f"a mapping with keys of {', '.join(part.model_fields)}"
        if part in words:
            return words[part]
    return next(_expected(part) for part in get_args(kind))
