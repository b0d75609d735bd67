"""Plain Markdown for anchors and citations, so that notebooks read well in Jupyter, in Colab and on GitHub, too.

- ``<a id="01-question"></a>`` on a line of its own is the label ``(01-question)=``.
- ``([Zhang et al., 2018](../book/references.bib#zhang2018mixup))`` is ``{cite}`zhang2018mixup```; several links may share
  the brackets. Without brackets, ``[Zhang et al. (2018)](../book/references.bib#zhang2018mixup)`` is ``{cite:t}``.
"""

from __future__ import annotations

import re

_ANCHOR = re.compile(r'<a id=(\\?)"([\w-]+)\1"></a>')
_LINK = r"\[[^][]+\]\(\.\./book/references\.bib#([\w:-]+)\)"
_CITED = re.compile(rf"\({_LINK}(?:, {_LINK})*\)|{_LINK}")


def keys(text: str) -> list[str]:
    """Return the keys of the entries that a text cites, in its order."""
    return re.findall(_LINK, text)


def to_myst(text: str) -> str:
    """Replace the anchors and citations of a notebook, or of its JSON, by MyST's labels and roles."""

    def cite(match: re.Match) -> str:
        role = "cite" if match[0].startswith("(") else "cite:t"
        return f"{{{role}}}`{','.join(keys(match[0]))}`"

    return _CITED.sub(cite, _ANCHOR.sub(r"(\2)=", text))


def read_source(app, docname, source):
    if docname.startswith("notebooks/"):
        source[0] = to_myst(source[0])


def setup(app):
    app.connect("source-read", read_source)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
