"""The colors of figures and pages, each with one for dark pages."""

ARM_COLORS = ("#5f6368", "#1f6fb2", "#d1651a", "#0f8f6f", "#a4508b", "#b8860b", "#54308c", "#b03a3a")
"""The baseline is gray; colors repeat after eight arms. Distinguishable for color-blind readers."""

VERDICT_COLORS = {
    "better": "#1b7f4d",
    "worse": "#b3382c",
    "equivalent": "#41688a",
    "undecided": "#9c6200",
    "none": "#6b6f76",
}
"""The color of each verdict."""

DARK_COLORS = {
    **dict(
        zip(
            ARM_COLORS,
            ("#a6acb3", "#6cb0ee", "#f09a5e", "#4fc9a6", "#d690c6", "#e0b64a", "#9b7bff", "#ee8a80"),
            strict=True,
        )
    ),
    **dict(zip(VERDICT_COLORS.values(), ("#62c794", "#ee8a80", "#8fb7da", "#e5ae55", "#a6acb3"), strict=True)),
}
"""The color on a dark page of each color that a figure uses on a light one."""

MARGIN = "#dde6ee"
"""The band of the margin."""
