// Keeps a study's page as the study is, while it is open: parts that change are put in place of the
// old ones, and what is open, focused, chosen or scrolled there stays so.
"use strict";

(() => {
  const root = document.querySelector("[data-live]");
  if (!root) return;
  const said = document.getElementById("said");
  const connection = document.getElementById("connection");
  const waiting = new Map(); // parts in which something is selected, by name
  let ahead = skew(root.dataset.now);

  // -- clocks ---------------------------------------------------------------------------------

  // Milliseconds by which this clock is ahead of the service's.
  function skew(now) {
    return Date.now() - Date.parse(now);
  }

  function durationText(seconds) {
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds);
    if (whole < 60) return `${whole} s`;
    const two = (number) => String(number).padStart(2, "0");
    const minutes = Math.floor(whole / 60);
    if (minutes < 60) return `${minutes}:${two(whole % 60)} min`;
    return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(whole % 60)} h`;
  }

  function tick() {
    for (const clock of root.querySelectorAll("[data-since]")) {
      const passed = (Date.now() - ahead - Date.parse(clock.dataset.since)) / 1000;
      const whole = Math.max(0, Math.floor(passed));
      clock.textContent = whole < 10 ? `${whole} s` : durationText(whole);
    }
  }

  // -- parts ----------------------------------------------------------------------------------

  function selectionIn(part) {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  }

  function remembered(part) {
    const kept = { open: [], chosen: [], scrolled: [], focus: null };
    for (const one of part.querySelectorAll("details[id][open]")) kept.open.push(one.id);
    for (const one of part.querySelectorAll("input[id]:checked")) kept.chosen.push(one.id);
    for (const one of part.querySelectorAll("[id]")) {
      if (one.scrollTop || one.scrollLeft) kept.scrolled.push([one.id, one.scrollTop, one.scrollLeft]);
    }
    const focused = document.activeElement;
    if (focused && part.contains(focused)) kept.focus = pathOf(focused, part);
    return kept;
  }

  // What finds an element again: its id, or a link's target, or where its parent is.
  function pathOf(element, part) {
    if (element.id) return `#${CSS.escape(element.id)}`;
    const href = element.getAttribute("href");
    if (href !== null) return `a[href="${CSS.escape(href)}"]`;
    const parent = element.parentElement;
    if (!parent || parent === part) return null;
    const above = pathOf(parent, part);
    const place = [...parent.children].indexOf(element) + 1;
    return above && `${above} > :nth-child(${place})`;
  }

  function restore(part, kept) {
    const find = (id) => part.querySelector(`#${CSS.escape(id)}`);
    for (const id of kept.open) find(id)?.setAttribute("open", "");
    for (const id of kept.chosen) {
      const input = find(id);
      if (input) input.checked = true;
    }
    if (kept.focus) part.querySelector(kept.focus)?.focus({ preventScroll: true });
    for (const [id, top, left] of kept.scrolled) find(id)?.scrollTo({ top, left, behavior: "instant" });
  }

  function replace(name, html) {
    const part = root.querySelector(`[data-part="${CSS.escape(name)}"]`);
    if (!part) return;
    if (selectionIn(part)) {
      waiting.set(name, html);
      return;
    }
    waiting.delete(name);
    const kept = remembered(part);
    part.innerHTML = html;
    part.dispatchEvent(new CustomEvent("part", { bubbles: true }));
    restore(part, kept);
  }

  // What is read must not move when something above it grows.
  function held(change) {
    const seen = [...root.children].find((part) => part.getBoundingClientRect().bottom > 0);
    const before = seen?.getBoundingClientRect().top;
    change();
    if (!seen || window.scrollY === 0) return;
    const moved = seen.getBoundingClientRect().top - before;
    if (Math.abs(moved) > 1) window.scrollBy({ top: moved, behavior: "instant" });
  }

  function show(change) {
    ahead = skew(change.now);
    held(() => {
      for (const [name, html] of Object.entries(change.parts)) replace(name, html);
    });
    if (said.textContent !== change.said) said.textContent = change.said;
    tick();
    if (!change.is_open) end();
  }

  // -- events ---------------------------------------------------------------------------------

  function tell(text) {
    if (connection && connection.textContent !== text) connection.textContent = text;
  }

  function end() {
    source.close();
    clearInterval(clock);
    document.getElementById("while-open")?.remove();
    root.removeAttribute("data-live");
  }

  const source = new EventSource(root.dataset.live);
  source.addEventListener("change", (event) => {
    tell("");
    show(JSON.parse(event.data));
  });
  source.addEventListener("open", () => tell(""));
  source.addEventListener("error", () => {
    const gone = source.readyState === EventSource.CLOSED;
    tell(gone ? "Live updates have ended: load the page again." : "Connecting again…");
  });
  document.addEventListener("selectionchange", () => {
    for (const [name, html] of [...waiting]) replace(name, html);
  });
  const clock = setInterval(tick, 1000);
  tick();
})();
