"""The name that a misspelt one was meant to be."""

import difflib
from collections.abc import Iterable


def hint(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question after the known name that is nearest, or ``otherwise`` if none is near.

    Capitals, ``-``, ``_``, ``.`` and spaces tell no names apart.

    Examples:
        >>> hint("Fed-Adam", ["fedavg", "fedadam"], "choose one")
        "did you mean 'fedadam'?"
        >>> hint("mine", ["fedavg", "fedadam"], "choose one")
        'choose one'
    """
    by_plain = {_plain(one): one for one in known}
    close = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=0.5)
    return f"did you mean {by_plain[close[0]]!r}?" if close else otherwise


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter not in "-_. ")
