"""Pages as what they are made of, and what holds of every one of them."""

from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr"})
ENDED_BY = {"td": {"td", "th", "tr"}, "th": {"td", "th", "tr"}, "tr": {"tr"}}
LEFT_OUT = frozenset(ENDED_BY)
REFERS = ("for", "aria-describedby", "aria-labelledby", "list", "form", "aria-controls")
LABELLED = frozenset({"input", "select", "textarea"})


@dataclass(slots=True)
class Element:
    """One element, with its text and that of all within."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    inside: list["Element"] = field(default_factory=list)

    def __getitem__(self, name):
        return self.attributes[name]

    def get(self, name, default=""):
        return self.attributes.get(name, default)

    @property
    def classes(self):
        return set(self.get("class").split())

    def all(self):
        yield self
        for one in self.inside:
            yield from one.all()

    def find(self, tag="", **attributes):
        """Elements of a tag that have these attributes; ``class_`` is one of the classes."""
        wanted = {name.rstrip("_").replace("_", "-"): v for name, v in attributes.items()}
        one_class = wanted.pop("class", None)
        return [
            one
            for one in self.all()
            if (not tag or one.tag == tag)
            and (one_class is None or one_class in one.classes)
            and all(one.attributes.get(name) == value for name, value in wanted.items())
        ]

    def one(self, tag="", **attributes):
        (found,) = self.find(tag, **attributes)
        return found

    def by_id(self, name):
        return self.one(id=name)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        while tag in ENDED_BY.get(self.open[-1].tag, ()):
            self.open.pop()
        one = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(one)
        if tag not in VOID:
            self.open.append(one)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert tag not in VOID, tag
        while self.open[-1].tag != tag and self.open[-1].tag in LEFT_OUT:
            self.open.pop()
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data):
        for one in self.open:
            one.text += data


def read_part(text):
    """A piece of a page, which must be nested rightly, and have nothing inline that acts."""
    reader = _Reader()
    reader.feed(str(text))
    reader.close()
    assert reader.open == [reader.root], [one.tag for one in reader.open]
    _check_nothing_inline(reader.root)
    return reader.root


def read_page(text):
    page = read_part(text)
    assert page.one("html")["lang"] == "en"
    assert page.one("head").one("title").text.strip()
    assert len(page.find("main")) == len(page.find("h1")) == 1
    ids = Counter(one["id"] for one in page.all() if "id" in one.attributes)
    assert not [name for name, count in ids.items() if count > 1]
    for one in page.all():
        for name in REFERS:
            for wanted in one.get(name).split():
                assert wanted in ids, (one.tag, name, wanted)
        if one.tag == "a" and one.get("href").startswith("#"):
            assert one["href"][1:] in ids, one["href"]
    _check_labels(page)
    return page


def _check_nothing_inline(page):
    for one in page.all():
        assert one.tag not in ("style", "iframe", "object", "embed", "base"), one.tag
        assert not [name for name in one.attributes if name.startswith("on") or name == "style"]
        if one.tag == "script":
            assert one["src"].startswith("/static/")
            assert not one.text.strip()
        for name in ("href", "src", "action", "formaction"):
            address = one.get(name, "/")
            assert address.startswith(("/", "#", "?")), address
            assert not address.startswith("//"), address


def _check_labels(page):
    """Each control has a name: a label around it or for it, or its own."""
    named = {one["for"] for one in page.find("label") if "for" in one.attributes}
    within = {id(one) for label in page.find("label") for one in label.all()}
    for one in page.all():
        if one.tag in LABELLED and one.get("type") not in ("hidden", "submit"):
            has_own = bool(one.get("aria-label") or one.get("aria-labelledby"))
            assert has_own or id(one) in within or one.get("id") in named, one.attributes
        if one.tag in ("button", "a", "summary", "legend"):
            assert one.text.strip() or one.get("aria-label"), (one.tag, one.attributes)
