"""Text in report pages."""

from partwise.plots.layout import whole_options


def test_options_are_kept_whole_and_text_is_escaped() -> None:
    text = "python a-b.py --seeds 4 -n=2 '<i>' x--y - --"
    found = whole_options(text)
    assert found == (
        "python a-b.py <span class='option'>--seeds</span> 4 <span class='option'>-n</span>=2 &#39;&lt;i&gt;&#39; x--y - --"
    )
    assert whole_options("--<b>") == "--&lt;b&gt;"
