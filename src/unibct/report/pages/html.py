"""HTML pages from the templates of the report room."""

from typing import Any

import jinja2


def rendered(name: str, **values: Any) -> str:
    """Return a template of ``report/templates``, filled in."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.PackageLoader("unibct.report", "templates"),
    )
    return environment.get_template(name).render(**values)
