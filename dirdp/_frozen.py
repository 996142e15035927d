"""The base of what makes up a plan: frozen, without unknown keys, and nothing guessed."""

from __future__ import annotations

from typing import Any, Literal, get_origin

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
            raise ValueError(f"{field.field_name} takes no {type(value).__name__}, got {value!r}")
        return value
