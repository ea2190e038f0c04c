"""Numbers in words for people, the same in verdicts, tables, reports and on the command line."""


def percent(share: float, *, sign: bool = False) -> str:
    """`0.036` as `3.6 %`."""
    return f"{share * 100:{'+' if sign else ''}.1f} %"


def noise_floor(share: float, *, assumed: bool) -> str:
    """A noise floor; "assumed" where it was not measured."""
    return percent(share) + (" (assumed)" if assumed else "")
