"""Whose query searches the rows of older models. The names are readable without torch."""

NEW_QUERY, TWO_QUERIES, BLENDED_QUERY = "new", "two", "blend"
ENCODERS = {
    NEW_QUERY: "that of the searching model",
    TWO_QUERIES: "that of their own model",
    BLENDED_QUERY: "both",
}


def describe_encoders() -> str:
    """Return the names with their meanings, for help texts."""
    return ", ".join(f"{name} ({meaning})" for name, meaning in ENCODERS.items())
