"""Checks a page of `highwater run --report FILE.html`, and prints the text of its headings.

Tags are balanced, nothing is loaded, every table has a caption and every plot a label, links lead
to sections that there are, and colours have the contrast that WCAG 2.1 asks for (AA).
"""

import re
import sys
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input", "base", "source"}
SECTIONS = {"time", "latency", "malloc", "locks", "processes", "all"}


class Page(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.links, self.headings = [], set(), [], []
        self.tables, self.captions, self.plots, self.viewport, self.style = 0, 0, 0, None, ""

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        attrs = dict(attrs)
        for name in ("src", "srcset", "data", "poster", "background", "xlink:href"):
            assert name not in attrs, f"{tag} loads {attrs[name]}"
        assert not any(name.startswith("on") for name in attrs), f"{tag} has a handler"
        assert tag not in ("link", "img", "iframe", "object", "base"), tag
        if tag not in VOID:
            self.open.append(tag)
        if "id" in attrs:
            assert attrs["id"] not in self.ids, f"id {attrs['id']} twice"
            self.ids.add(attrs["id"])
        if tag == "a":
            assert attrs["href"].startswith("#"), attrs["href"]
            self.links.append(attrs["href"][1:])
        if tag == "meta" and attrs.get("name") == "viewport":
            self.viewport = attrs["content"]
        if "plot" in attrs.get("class", "").split():
            self.plots += 1
            assert attrs["role"] == "img" and len(attrs["aria-label"]) > 20, attrs
        self.tables += tag == "table"
        self.captions += tag == "caption"

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            self.style += data
        if {"h1", "h2", "h3"} & set(self.open):
            self.headings.append(data)


def luminance(colour):
    channels = [int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def check_colours(style):
    schemes = re.findall(r":root \{(.*?)\}", style, re.S)
    assert len(schemes) == 2, "a light and a dark scheme"
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", scheme))
        for text in ("text", "soft", "s0"):
            for ground in ("page", "card"):
                found = contrast(colours[text], colours[ground])
                assert found >= 4.5, f"{text} on {ground}: {found:.2f}"
        assert contrast(colours["text"], colours["bar"]) >= 4.5, "text on a bar"
        for line in ("s0", "s1", "s2", "other", "fine", "slow", "bad", "h6"):
            found = contrast(colours[line], colours["card"])
            assert found >= 3, f"{line} on card: {found:.2f}"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    assert text.startswith("<!DOCTYPE html><html lang=\"en\">"), text[:80]
    page = Page()
    page.feed(text)
    page.close()
    assert not page.open, f"not closed: {page.open}"
    assert "width=device-width" in page.viewport
    assert SECTIONS <= page.ids, SECTIONS - page.ids
    assert set(page.links) <= page.ids, set(page.links) - page.ids
    assert page.tables >= 3 and page.tables == page.captions, (page.tables, page.captions)
    assert page.plots >= 5, f"{page.plots} plots"
    for load in ("url(", "@import", "http://", "https://", "fetch(", "import("):
        assert load not in text, load
    check_colours(page.style)
    print("\n".join(page.headings))


main()
