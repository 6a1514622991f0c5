"""The command for the studio, a local page in the browser."""

from typing import Annotated

import typer

from partwise.cli.options import FLAG, Import, app, load_imports


@app.command()
def studio(
    experiments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILE.yaml]...", help="Experiments of any code that the studio may run."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", help="The port. Default: 8765, or a free one.", min=1),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="FILE", help="A text that questions may be about. Repeatable."),
    ] = None,
    imports: Import = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="/PATH", help="The path under which a proxy serves it.")
    ] = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--host-name", metavar="NAME", help="The host name of a proxy. Repeatable.")
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", metavar=FLAG, help="Print the link without opening a browser.")
    ] = False,
) -> None:
    """Ask, predict, watch and read comparisons in a browser, on this machine alone."""
    from partwise.torch_extra import require_torch

    require_torch("this command")
    from partwise.cli.commands.studio import serve

    loaded = load_imports(imports)
    serve(port, tuple(experiments or ()), tuple(data or ()), loaded, tuple(hosts or ()), prefix or "", not no_browser)
