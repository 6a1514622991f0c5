"""Check that a figure of a page is as wide as a phone, and shows all that is drawn."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from partwise.plots.plotting import WIDTH


def check_figure(figure: Figure) -> str:
    """In place of `svg_file`: assert that no text or line leaves the figure; always "whole"."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
    assert width == WIDTH
    assert drawn.x0 >= -0.01 and drawn.y0 >= -0.01 and drawn.x1 <= width + 0.01 and drawn.y1 <= height + 0.01, drawn
    return "whole"
