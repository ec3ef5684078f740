"""Formats quantities for people. Parsing is left to the formats that define them."""


def format_bytes(count: float) -> str:
    """Format bytes in binary units with one decimal: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """Format a duration: '0.42 s', '12.3 s', '4 min 05 s'."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def format_rough_seconds(seconds: float) -> str:
    """Format an estimated duration: '20 s', '4 min'."""
    return f"{max(round(seconds, -1), 10):.0f} s" if seconds < 90 else f"{round(seconds / 60)} min"
