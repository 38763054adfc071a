"""Text from data, made safe to show."""


def printable(text: str, limit: int | None = None) -> str:
    r"""Return text without letters that would steer a terminal or break an XML file.

    Args:
        text: Anything; an id or a label, say.
        limit: Longer text is cut to this many letters, of which the last is an ellipsis.

    Examples:
        >>> printable("red \x1b[31m"), printable("wood_processed", 8), printable("a\nb")
        ('red �[31m', 'wood_pr…', 'a b')
    """
    plain = "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )
    return plain if limit is None or len(plain) <= limit else f"{plain[: limit - 1]}…"
