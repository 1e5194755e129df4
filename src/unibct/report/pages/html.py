"""Fill in the HTML templates of ``report/templates``."""

from typing import Any

import jinja2


def render_template(name: str, **values: Any) -> str:
    """Return the HTML of a template with its values filled in; text is escaped."""
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.PackageLoader("unibct.report", "templates"),
    )
    return environment.get_template(name).render(**values)
