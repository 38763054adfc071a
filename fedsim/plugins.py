"""Names in the YAML to Python objects: a registered name, a dotted path, or a file."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedsim.errors import ConfigError, FedsimError
from fedsim.nearest import hint


def resolve(name: str, known: Mapping[str, str], where: str) -> Any:
    """Return the object that a name stands for.

    Args:
        name: A key of ``known``, ``package.module:Object``, or ``path/file.py:Object`` (relative to
            the working directory).
        known: Short names to ``package.module:Object``.
        where: The setting's dotted path, for errors.

    Raises:
        ConfigError: Nothing has this name, or its module fails to import.

    Examples:
        >>> resolve("math:sqrt", {}, "model.name")(9.0)
        3.0
    """
    target = known.get(name, name)
    module_name, _, attribute = target.rpartition(":")
    if not module_name or not attribute:
        remedy = hint(name, known, f"known are {', '.join(sorted(known))}")
        raise ConfigError(
            f"{where}: expected a known name, package.module:Object or ./file.py:Object, found "
            f"{name!r}; {remedy}"
        )
    module = (
        _import_file(module_name, where)
        if module_name.endswith(".py")
        else _import_module(module_name, where)
    )
    try:
        return getattr(module, attribute)
    except AttributeError:
        remedy = hint(attribute, dir(module), "check the name after the colon")
        raise ConfigError(
            f"{where}: expected {attribute!r} in {module_name}, found none; {remedy}"
        ) from None


def registered(group: str) -> dict[str, str]:
    """Return the names that installed packages registered under an entry point group."""
    return {point.name: point.value for point in entry_points(group=group)}


def call(factory: Callable[..., Any], parameters: dict[str, Any], where: str, **given: Any) -> Any:
    """Call a class or function with parameters from the YAML, checked against its signature.

    Args:
        factory: What to call.
        parameters: From the YAML, by keyword.
        where: The section, for errors.
        **given: What fedsim itself passes.

    Raises:
        ConfigError: A parameter is unknown or missing, or the call itself refuses its value.
    """
    signature = _signature(factory, where)
    accepted = [
        p.name
        for p in signature.parameters.values()
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in parameters:
        if name in given or (name not in accepted and not takes_all):
            offered = [option for option in accepted if option not in given]
            remedy = hint(name, offered, f"it takes {', '.join(offered) or 'none'}")
            raise ConfigError(
                f"{where}.{name}: expected a parameter of {_name_of(factory)}, found {name!r}; "
                f"{remedy}"
            )
    for name in _required(signature):
        if name not in parameters and name not in given:
            raise ConfigError(
                f"{where}.{name}: expected a value, which {_name_of(factory)} has no default for, "
                "found none; add it"
            )
    try:
        return factory(**given, **parameters)
    except FedsimError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{where}: expected {_name_of(factory)} to accept its parameters, found "
            f"{type(error).__name__}: {error}; change them, or mend it"
        ) from error


def defaults(factory: Callable[..., Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the plain default values (numbers, texts, lists) of parameters that are not given."""
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # ``call`` will say so
        return {}
    found = {}
    for name, parameter in signature.parameters.items():
        default = parameter.default
        if isinstance(default, tuple):
            default = list(default)
        plain = default is None or isinstance(default, bool | int | float | str | list)
        if name not in parameters and plain:
            found[name] = default
    return found


def _signature(factory: Callable[..., Any], where: str) -> inspect.Signature:
    try:
        return inspect.signature(factory)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{where}: expected a class or function, found {factory!r}; name one that can be called"
        ) from None


def _required(signature: inspect.Signature) -> list[str]:
    return [
        p.name
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


def _name_of(factory: Callable[..., Any]) -> str:
    return getattr(factory, "__qualname__", repr(factory))


def _find_in_working_folder() -> None:
    """Let modules of the working folder be imported, after everything that is installed.

    ``python -m`` does so by itself, and puts the folder first; a command that pip installed does
    not. Last, a folder that is called like an installed package hides nothing.
    """
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.append(here)


def _import_module(name: str, where: str) -> Any:
    _find_in_working_folder()
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(
            f"{where}: expected a module {name!r} that imports, found {type(error).__name__}: "
            f"{error}; install it or check the dotted path"
        ) from error


def _import_file(path: str, where: str) -> Any:
    file = Path(path).resolve()
    if not file.is_file():
        raise ConfigError(
            f"{where}: expected a Python file, found nothing at {file}; paths are relative to the "
            "working directory"
        )
    _find_in_working_folder()  # for what the file itself imports
    # A name of its own: the file may be called like an installed package.
    name = f"fedsim_plugin_{file.stem}_{abs(hash(file)):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{where}: expected a Python file, found {file}; name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(
            f"{where}: expected {file} to import, found {type(error).__name__}: {error}; mend it"
        ) from error
    return module
