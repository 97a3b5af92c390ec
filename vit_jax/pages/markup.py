"""HTML and SVG elements that cannot be broken by what is put into them."""

import html


class Markup(str):
    """Text that is HTML already; every other text is escaped when it is put into an element."""

    __slots__ = ()


def element(name: str, *inside: object, **attributes: object) -> Markup:
    """Returns `<name attributes>inside</name>`; `class_` is written `class`, `a_b` is `a-b`.

    Attributes that are None are left out, and so are children that are None.
    """
    content = "".join(text(one) for one in inside if one is not None)
    return Markup(f"<{name}{_attributes(attributes)}>{content}</{name}>")


def empty(name: str, **attributes: object) -> Markup:
    """An element that has no end, such as `<img>`."""
    return Markup(f"<{name}{_attributes(attributes)}>")


def join(*parts: object) -> Markup:
    """Returns what stands one after another."""
    return Markup("".join(text(part) for part in parts if part is not None))


def text(value: object) -> Markup:
    """A value as HTML: markup as it is, all else escaped."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def _attributes(attributes: dict[str, object]) -> str:
    return "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
