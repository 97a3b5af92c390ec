"""HTML and SVG elements that escape their contents."""

import html


class Markup(str):
    """Text that is HTML already; all other text is escaped when it enters an element."""

    __slots__ = ()


def element(name: str, *inside: object, **attributes: object) -> Markup:
    """`<name attributes>inside</name>`; `class_` is written `class`, `a_b` is `a-b`.

    Attributes that are None are left out, and so are children that are None.
    """
    content = "".join(text(one) for one in inside if one is not None)
    return Markup(f"<{name}{_attributes(attributes)}>{content}</{name}>")


def empty(name: str, **attributes: object) -> Markup:
    """A void element, such as `<img>`."""
    return Markup(f"<{name}{_attributes(attributes)}>")


def join(*parts: object) -> Markup:
    """Concatenates parts."""
    return Markup("".join(text(part) for part in parts if part is not None))


def text(value: object) -> Markup:
    """Escapes a value, unless it is Markup."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def _attributes(attributes: dict[str, object]) -> str:
    return "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
