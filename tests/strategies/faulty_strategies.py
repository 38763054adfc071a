"""Strategies that are at fault, each in one way."""

from typing import Any

import torch

from fedsim.arrays import Arrays
from fedsim.client_part import Client, ClientPart
from fedsim.combine_strategy import CombineStrategy
from fedsim.strategy import SumStrategy


def added(arrays: Arrays, update: Arrays) -> Arrays:
    return {name: a + update[name] for name, a in arrays.items()}


class Step(SumStrategy):
    """``what``: how its server step fails."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Any:
        stepped = added(arrays, update)
        match self.what:
            case "nothing":
                return None
            case "numbers":
                return dict.fromkeys(arrays, 0.0)
            case "lacks":
                return {name: a for name, a in stepped.items() if name != "3.bias"}
            case "shape":
                return {**stepped, "3.bias": torch.zeros(7)}
            case "nan":
                return {**stepped, "3.bias": torch.full((3,), torch.nan)}
            case "raises":
                return arrays["no such array"]
            case "writes":
                return {name: a.add_(1.0) for name, a in arrays.items()}
        return stepped

    def after_round(self, round_num: int, metrics: dict[str, float]) -> None:
        if self.what == "after_round":
            raise ValueError("afterwards")

    def state_dict(self) -> dict[str, Any]:
        if self.what == "state_dict":
            raise ValueError("no state today")
        return {"m": [torch.tensor([1.0, torch.inf])]} if self.what == "infinite" else {}


class Combines(CombineStrategy):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def combine(self, updates: list[Arrays], num_examples: list[int]) -> Any:
        match self.what:
            case "nothing":
                return None
            case "lacks":
                return {name: a for name, a in updates[0].items() if name != "3.bias"}
            case "shape":
                return {**updates[0], "3.bias": torch.zeros(7)}
            case "nan":
                return {**updates[0], "3.bias": torch.full((3,), torch.nan)}
            case "raises":
                return updates[len(updates)]
        return updates[0]


class Beside(SumStrategy):
    """``what``: what is wrong with what it sends along."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.asked = what, 0

    def sent_along(self, arrays: Arrays) -> Any:
        self.asked += 1
        match self.what:
            case "nothing":
                return None
            case "clash":
                return {"3.bias": torch.zeros(3)}
            case "dtype":
                return {"extra": torch.zeros(3, dtype=torch.float64)}
            case "nan":
                return {"extra": torch.full((3,), torch.nan)}
            case "raises":
                raise ValueError("nothing to send")
            case "names":
                return {f"extra{self.asked}": torch.zeros(3)}
            case "shapes":
                return {"extra": torch.zeros(self.asked)}
        return {"extra": torch.zeros(3)}

    def server_step(self, round_num: int, arrays: Arrays, update: Arrays) -> Arrays:
        return added(arrays, update)


class Part(ClientPart):
    def __init__(self, what: str) -> None:
        self.what = what

    def start(self, client: Client) -> None:
        self._maybe_raise("start")

    def adjust(self, client: Client, gradients: list[torch.Tensor]) -> None:
        self._maybe_raise("adjust")

    def finish(self, client: Client) -> Any:
        self._maybe_raise("finish")
        match self.what:
            case "nothing":
                return None
            case "unknown":
                return {"other": torch.zeros(3)}
            case "shape":
                return {"extra": torch.zeros(4)}
            case "dtype":
                return {"extra": torch.zeros(3, dtype=torch.float64)}
            case "nan":
                return {"extra": torch.full((3,), torch.nan)}
            case "writes":
                client.sent_along["extra"].add_(1.0)
            case "list":
                client.state = [torch.zeros(3)]  # type: ignore[assignment]
            case "numbers":
                client.state = {"seen": 3}  # type: ignore[dict-item]
        return {}

    def _maybe_raise(self, method: str) -> None:
        if self.what == method:
            raise KeyError(f"in {method}")


class WithPart(Beside):
    """``what``: what is wrong with its part on the user's side."""

    def client_part(self) -> Any:
        if self.what == "no part":
            return object()
        if self.what == "making":
            raise ValueError("no part today")
        return Part(self.what)

    def sent_along(self, arrays: Arrays) -> Arrays:
        return {"extra": torch.zeros(3)}
