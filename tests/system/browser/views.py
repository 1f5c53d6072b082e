"""What a reader sees of a page, measured in the page."""

MOST_LINE_EM = 52
"""The longest line of running text, in its own type size: some 100 characters."""
_LINES = """() => {
  const inEm = (one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    const widths = [...range.getClientRects()].map((rect) => rect.width);
    return Math.max(0, ...widths) / parseFloat(getComputedStyle(one).fontSize);
  };
  return Math.max(0, ...[...document.querySelectorAll("main p, main .prose li")].map(inEm));
}"""
_FOCUS = """() => {
  const one = document.activeElement;
  const shown = one.matches(".tabs > input, .segment > input") ? one.nextElementSibling : one;
  const style = getComputedStyle(shown);
  const box = shown.getBoundingClientRect();
  return {
    tag: one.tagName,
    id: one.id,
    text: (one.textContent || one.getAttribute("aria-label") || "").trim().slice(0, 60),
    outline: parseFloat(style.outlineWidth) * (style.outlineStyle === "none" ? 0 : 1),
    width: box.width,
    height: box.height,
  };
}"""


def longest_line_em(page):
    return float(page.evaluate(_LINES))


def focused(page):
    return page.evaluate(_FOCUS)
