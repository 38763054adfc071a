from pathlib import Path

import pytest

from fedsim.errors import ConfigError
from fedsim.plugins import call, registered, resolve


def test_installed_strategies_are_registered() -> None:
    assert {"fedavg", "fedadam"} <= registered("fedsim.strategies").keys()


def test_a_file_is_loaded_once_and_may_be_called_like_a_package(tmp_path: Path) -> None:
    path = tmp_path / "numpy.py"
    path.write_text("class Mine:\n    pass\n")
    assert resolve(f"{path}:Mine", {}, "x") is resolve(f"{path}:Mine", {}, "x")
    import numpy

    assert hasattr(numpy, "ndarray")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedavgg", "did you mean 'fedavg'"),
        ("zzz", "known are fedavg"),
        ("no.such.module:X", "expected a module 'no.such.module' that imports"),
        ("math:sqrtt", "did you mean 'sqrt'"),
        ("./none.py:X", "expected a Python file, found nothing at"),
    ],
)
def test_names_that_stand_for_nothing(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"where\.name: .*{message}"):
        resolve(name, {"fedavg": "fedsim_strategies.fedavg:FedAvg"}, "where.name")


def test_a_file_that_fails_to_import_says_why(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivisionError: division by zero"):
        resolve(f"{path}:X", {}, "strategy.name")


def test_parameters_are_checked_against_the_signature() -> None:
    def factory(num_labels: int, *, learning_rate: float = 1.0, width: int) -> tuple[object, ...]:
        return num_labels, learning_rate, width

    assert call(factory, {"width": 2}, "model", num_labels=3) == (3, 1.0, 2)
    with pytest.raises(ConfigError, match=r"model\.lerning_rate: .* did you mean 'learning_rate'"):
        call(factory, {"lerning_rate": 2, "width": 1}, "model", num_labels=3)
    with pytest.raises(ConfigError, match=r"model\.width: expected a value, which .*factory has"):
        call(factory, {}, "model", num_labels=3)
    with pytest.raises(ConfigError, match=r"model\.num_labels: expected a parameter"):
        call(factory, {"num_labels": 2, "width": 1}, "model", num_labels=3)
