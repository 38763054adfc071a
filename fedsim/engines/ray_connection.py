"""Ray: one of our own on this machine alone, or a cluster that is running."""

import importlib
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedsim.engines.workers import num_cores
from fedsim.errors import EngineError, first_line

_SECONDS_TO_CONNECT = 10.0
_LOCAL = {
    # Without it every process of Ray's listens on all of the machine's addresses, whatever address
    # the node is given. It is read when ray is imported.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Others on this machine could otherwise have code run under this user's name.
    "RAY_AUTH_MODE": "token",
    # Ray's own is 15, which costs much beside other programs.
    "RAY_worker_niceness": "0",
    # Ray otherwise warns that a later release will do so.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def import_ray() -> Any:
    """Return the package.

    Raises:
        EngineError: It is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise EngineError(
            f"engine.name: expected the package ray for the engine ray, found that it can't be "
            f"imported ({error}); install it with pip install 'fedsim[ray]', or set engine.name: "
            "in_process"
        ) from error


def connect(address: str | None) -> Callable[[], None]:
    """Connect this process to Ray, unless it is connected already.

    Args:
        address: Of a running cluster: ``auto``, ``host:port`` or ``ray://host:port``. None starts
            a Ray that listens on loopback only, without dashboard and usage statistics.

    Returns:
        What ends the connection, and a Ray that was started here; nothing where the caller's
        process was connected before.

    Raises:
        EngineError: Ray is not installed, can't be started or does not answer.
    """
    if address is not None:
        ray = import_ray()
        if ray.is_initialized():
            return lambda: None
        _check_listens(address)
        _init(ray, address, address=address)
        return lambda: ray.shutdown()
    with _environment(_LOCAL):
        ray = import_ray()
        if ray.is_initialized():
            return lambda: None
        where = {"num_cpus": num_cores(), "include_dashboard": False}
        context = _init(ray, "local", address="local", **where)
    found = context.address_info["node_ip_address"]
    if not ipaddress.ip_address(found).is_loopback:
        ray.shutdown()
        raise EngineError(
            f"engine.name: expected a Ray that listens on loopback only, found it on {found}, as "
            "this process had imported ray before; import ray later, or start Ray yourself and "
            "give engine.address"
        )
    return lambda: ray.shutdown()


def _check_listens(address: str) -> None:
    """Raise EngineError if nobody listens at an address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:  # auto
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        raise EngineError(
            f"engine.address: expected a Ray cluster at {address}, found that nobody answers there "
            f"({error}); correct the address, or leave it out for a Ray on this machine"
        ) from error


def _init(ray: Any, name: str, **where: Any) -> Any:
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        return ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
    except Exception as error:
        raise EngineError(
            f"engine.address: expected to connect to Ray ({name}), found {type(error).__name__}: "
            f"{first_line(error)}; check that the cluster is running there with the same versions "
            "of ray and Python, or leave engine.address out for a Ray on this machine"
        ) from error


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Set what the environment does not say yet, for what is started meanwhile."""
    new = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
