// Charts: what a mark is, the way from a mark to its row, and the zoom of memory against speed.
"use strict";

(() => {
  const MARK = ".chart-marks > a";
  const tip = Object.assign(document.createElement("div"), { className: "chart-tip", hidden: true });
  document.body.append(tip);

  // -- what a mark is ---------------------------------------------------------------------------

  const rowOf = (mark) => {
    const href = mark.getAttribute("href");
    return href.startsWith("#") ? document.getElementById(href.slice(1)) : null;
  };

  function tell(mark) {
    const title = mark.querySelector("title");
    if (title) {
      // The browser's own tooltip would come a second later, over this one.
      mark.setAttribute("aria-label", title.textContent);
      title.remove();
    }
    const lines = [mark.getAttribute("aria-label")];
    const row = rowOf(mark);
    if (row) {
      const heads = row.closest("table").tHead.rows[0].cells;
      const figures = /memory|step|tokens|took/;
      const known = [...row.cells].filter((_, n) => !figures.test(heads[n].textContent));
      lines.push(...known.map((cell) => (cell.cellIndex > 1 ? `${heads[cell.cellIndex].textContent} ` : "") + cell.textContent));
    }
    tip.replaceChildren(...lines.map((line) => Object.assign(document.createElement("span"), { textContent: line })));
    tip.hidden = false;
    const box = mark.querySelector("use").getBoundingClientRect();
    const left = Math.min(box.right + 6, innerWidth - tip.offsetWidth - 8);
    const top = box.bottom + 6 + tip.offsetHeight > innerHeight ? box.top - tip.offsetHeight - 6 : box.bottom + 6;
    tip.style.left = `${Math.max(8, left) + scrollX}px`;
    tip.style.top = `${top + scrollY}px`;
  }

  for (const [comes, goes] of [["pointerover", "pointerout"], ["focusin", "focusout"]]) {
    document.addEventListener(comes, (event) => {
      const mark = event.target.closest?.(MARK);
      if (mark) tell(mark);
    });
    document.addEventListener(goes, (event) => { if (event.target.closest?.(MARK)) tip.hidden = true; });
  }

  // The address names the row: browsers mark it, and what is folded around it is opened.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    for (let fold = link && rowOf(link); fold; fold = fold.parentElement) if (fold.tagName === "DETAILS") fold.open = true;
  });

  // -- zoom -------------------------------------------------------------------------------------

  const numbers = (text) => text.split(" ").map(Number);

  function ticks(low, high, count) {
    const least = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= least * (1 - 1e-9));
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-9); n++) found.push(Number((n * step).toPrecision(12)));
    return found;
  }

  function element(name, attributes, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  }

  // Marks, lines and ticks put where a range has them: x from and to, y from and to.
  function draw(svg, range) {
    const [left, right, bottom, top] = range;
    const height = Number(svg.dataset.height);
    const foot = Number(svg.getAttribute("height"));
    const within = (share) => Math.min(Math.max(share, 0), 1);
    const across = (x) => 100 * within((x - left) / (right - left));
    const down = (y) => height * (1 - within((y - bottom) / (top - bottom)));
    svg.dataset.now = range.join(" ");
    const isHome = numbers(svg.dataset.range).every((end, n) => end === range[n]);
    const fronts = new Map();
    for (const mark of svg.querySelectorAll(MARK)) {
      const [x, y] = numbers(mark.dataset.at);
      const use = mark.querySelector("use");
      const isBeyond = x < left || x > right || y < bottom || y > top;
      mark.classList.toggle("chart-beyond", isBeyond);
      // At the edge of what somebody chose to see it would be in the way.
      mark.setAttribute("visibility", isBeyond && !isHome ? "hidden" : "visible");
      use.setAttribute("x", `${across(x)}%`);
      if (y !== undefined) use.setAttribute("y", down(y));
      mark.querySelector(".chart-ring")?.setAttribute("cx", `${across(x)}%`);
      if (y !== undefined) mark.querySelector(".chart-ring")?.setAttribute("cy", down(y));
      mark.querySelector(".chart-whisker")?.remove();
      const series = mark.dataset.front;
      if (series !== undefined) fronts.set(series, [...(fronts.get(series) ?? []), [x, y]]);
    }
    for (const [series, points] of fronts) {
      const steps = points.sort((one, other) => one[0] - other[0]).map(([x, y], n) => (n ? `H${10 * across(x)}V${down(y)}` : `M${10 * across(x)} ${down(y)}`));
      svg.querySelector(`.chart-front.chart-series-${series}`).setAttribute("d", `${steps.join("")}H1000`);
    }
    for (const one of svg.querySelectorAll(".chart-limits")) {
      const x = `${across(Number(one.dataset.x))}%`;
      const line = one.querySelector("line");
      line.setAttribute("visibility", Number(one.dataset.x) > right || Number(one.dataset.x) < left ? "hidden" : "visible");
      line.setAttribute("x1", x);
      line.setAttribute("x2", x);
      one.querySelector("text").setAttribute("x", x);
    }
    const shown = (tick) => tick.toLocaleString("en", { maximumSignificantDigits: 6 });
    svg.querySelector(".chart-y").replaceChildren(...ticks(bottom, top, 5).flatMap((tick) => [
      element("line", { x2: "100%", y1: down(tick), y2: down(tick), class: "chart-grid" }),
      element("text", { x: -8, y: down(tick), dy: ".35em", "text-anchor": "end" }, shown(tick)),
    ]));
    svg.querySelector(".chart-x").replaceChildren(
      element("line", { x2: "100%", y1: foot, y2: foot, class: "chart-axis" }),
      ...ticks(left, right, 6).map((tick) => element("text", { x: `${across(tick)}%`, y: foot, dy: "1.4em", "text-anchor": "middle" }, shown(tick))),
    );
    const button = svg.parentElement.querySelector("[data-zoom]") ?? svg.parentElement.querySelector(".chart-head").appendChild(Object.assign(document.createElement("button"), { className: "button quiet", type: "button" }));
    button.dataset.zoom = isHome ? "whole" : "range";
    button.textContent = isHome ? "Show all" : "Back to the crowd";
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-zoom]");
    if (!button) return;
    const svg = button.closest(".chart").querySelector(".chart-plot");
    draw(svg, numbers(svg.dataset[button.dataset.zoom]));
  });

  // A rectangle drawn with the mouse is what is seen next.
  let drag = null;
  document.addEventListener("pointerdown", (event) => {
    const svg = event.target.closest?.(".chart-scatter .chart-plot");
    if (!svg || event.button || event.pointerType !== "mouse" || event.target.closest("a")) return;
    drag = { svg, box: svg.querySelector(".chart-ground").getBoundingClientRect(), from: [event.clientX, event.clientY] };
    drag.rect = svg.appendChild(element("rect", { class: "chart-drag", width: 0, height: 0 }));
    event.preventDefault();
  });
  const corners = (event) => [0, 1].map((n) => {
    const start = n ? drag.box.top : drag.box.left;
    const size = n ? drag.box.height : drag.box.width;
    const ends = [drag.from[n], n ? event.clientY : event.clientX].map((at) => Math.min(Math.max(at - start, 0), size));
    return [Math.min(...ends), Math.max(...ends), size];
  });
  document.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [[left, right], [top, bottom]] = corners(event);
    for (const [name, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top })) drag.rect.setAttribute(name, value);
  });
  document.addEventListener("pointerup", (event) => {
    if (!drag) return;
    const [[left, right, width], [top, bottom, height]] = corners(event);
    const { svg } = drag;
    drag.rect.remove();
    drag = null;
    if (right - left < 8 || bottom - top < 8) return;
    const [x0, x1, y0, y1] = numbers(svg.dataset.now ?? svg.dataset.range);
    const x = (at) => x0 + ((x1 - x0) * at) / width;
    const y = (at) => y1 - ((y1 - y0) * at) / height;
    draw(svg, [x(left), x(right), y(bottom), y(top)]);
  });
})();
