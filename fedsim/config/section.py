"""What every part of the settings has in common."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the tree: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Component(BaseModel):
    """Something with a name and parameters of its own."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: str

    @property
    def parameters(self) -> dict[str, Any]:
        """Every key but ``name``."""
        return dict(self.model_extra or {})
