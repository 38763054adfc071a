"""YAML 1.2, parsed without ever building objects, and its faults in plain words."""

import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

# What the parser says, and what it found and how that is mended.
_WORDS = (
    (r"mapping values are not allowed", "a second ': ' in one value", "quote the value, or indent"),
    (r"duplicate key \"(.*?)\"", "the duplicate key {!r}", "rename or drop one of them"),
    (r"character '\\t'", "a tab", "indent with spaces"),
    (r"character '(.)'", "a value that begins with {!r}", "quote the value"),
    (r"undefined alias '(.*?)'", "*{0} without &{0} before it", "write &{0} at the first use"),
    (r"expected <block end>", "a line of another indentation", "indent it like its neighbours"),
    (r"expected ',' or '(.)'", "a list or mapping that is not closed", "close it with {}"),
    (r"expected the node content", "an end where a value should be", "complete the value"),
    (r"end of stream|unexpected end", "a quote that is not closed", "close it"),
    (r"could not determine a constructor", "a tag, which is not allowed", "write a plain value"),
)


def parse_yaml(text: str) -> Any:
    """Parse YAML: ``1e-3`` is a number and ``no`` a string.

    Raises:
        YAMLError: It is none.

    Examples:
        >>> parse_yaml("{a: 1e-3, b: no, c: '0123456'}")
        {'a': 0.001, 'b': 'no', 'c': '0123456'}
    """
    return YAML(typ="safe", pure=True).load(text)


def fault_of(error: YAMLError | UnicodeDecodeError) -> tuple[str, str, str]:
    """Return where a text is no YAML (", line 1, column 2"), what was found, and the remedy."""
    if not isinstance(error, MarkedYAMLError):
        return "", " ".join(str(error).split()), "mend it"
    mark = error.problem_mark
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    problem = " ".join(str(error.problem).split())
    for pattern, found, remedy in _WORDS:
        match = re.search(pattern, problem)
        if match:
            return where, found.format(*match.groups()), remedy.format(*match.groups())
    return where, problem, "mend the syntax"
