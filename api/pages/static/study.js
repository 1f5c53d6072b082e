// A study's page: it follows the study while that is open, and its table of probes is sorted in
// place. Parts that change are put in place of the old ones, and what is open, focused, chosen or
// scrolled there stays so.
"use strict";

(() => {
  const root = document.getElementById("study");
  const said = document.getElementById("said");
  const connection = document.getElementById("connection");
  const known = new Map(); // HTML of parts as it came last, by name
  const waiting = new Map(); // the same of parts in which something is selected
  let source = null;
  let clock = 0;
  let ahead = 0; // milliseconds by which this clock is ahead of the service's

  // -- clocks ---------------------------------------------------------------------------------

  function durationText(seconds) {
    if (seconds < 60) return `${seconds} s`;
    const two = (number) => String(number).padStart(2, "0");
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes}:${two(seconds % 60)} min`;
    return `${Math.floor(minutes / 60)}:${two(minutes % 60)}:${two(seconds % 60)} h`;
  }

  function tick() {
    for (const one of root.querySelectorAll("[data-since]")) {
      const passed = (Date.now() - ahead - Date.parse(one.dataset.since)) / 1000;
      one.textContent = durationText(Math.max(0, Math.floor(passed)));
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

  // What finds an element again: its id, or a probe's link, or where its parent is.
  function pathOf(element, part) {
    if (element.id) return `#${CSS.escape(element.id)}`;
    const href = element.getAttribute("href");
    if (href?.startsWith("?probe=")) return `a[href="${CSS.escape(href)}"]`;
    const parent = element.parentElement;
    if (!parent) return null;
    const above = parent === part ? ":scope" : pathOf(parent, part);
    return above && `${above} > :nth-child(${[...parent.children].indexOf(element) + 1})`;
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
    if (!part || known.get(name) === html) return;
    if (selectionIn(part)) {
      waiting.set(name, html);
      return;
    }
    waiting.delete(name);
    known.set(name, html);
    const kept = remembered(part);
    part.innerHTML = html;
    restore(part, kept);
  }

  // What is read must not move when something above it grows.
  function held(change) {
    const seen = [...root.querySelectorAll("h2[id], details[id]")].find((one) => one.getBoundingClientRect().top >= 0);
    const before = seen?.getBoundingClientRect().top;
    change();
    const now = seen && document.getElementById(seen.id);
    if (!now || window.scrollY === 0) return;
    const moved = now.getBoundingClientRect().top - before;
    if (Math.abs(moved) > 1) window.scrollBy({ top: moved, behavior: "instant" });
  }

  // -- the table of probes ----------------------------------------------------------------------

  // The service sorts and filters. Without this script its links load the whole page.
  async function follow(link) {
    const answer = await fetch(link.href, { headers: { Accept: "text/html" } });
    if (!answer.ok || answer.redirected) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.getSelection().removeAllRanges();
    replace("probes", fresh.querySelector('[data-part="probes"]').innerHTML);
    history.replaceState(null, "", link.href);
    if (source) listen(fresh.getElementById("study").dataset.live);
  }

  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target.closest("#probes thead a, #probes .chips a");
    if (!link) return;
    event.preventDefault();
    follow(link).catch(() => location.assign(link.href));
  });

  // -- events ---------------------------------------------------------------------------------

  function tell(text) {
    if (connection && connection.textContent !== text) connection.textContent = text;
  }

  function show(change) {
    ahead = Date.now() - Date.parse(change.now);
    held(() => {
      const fresh = new DOMParser().parseFromString(change.body, "text/html");
      for (const part of fresh.querySelectorAll("[data-part]")) replace(part.dataset.part, part.innerHTML);
    });
    if (said.textContent !== change.said) said.textContent = change.said;
    tick();
    if (!change.is_open) end();
  }

  function end() {
    source.close();
    source = null;
    clearInterval(clock);
    document.getElementById("while-open")?.remove();
    root.removeAttribute("data-live");
  }

  function listen(address) {
    source?.close();
    if (!address) return location.reload(); // it has ended meanwhile
    source = new EventSource(address);
    source.addEventListener("change", (event) => {
      tell("");
      show(JSON.parse(event.data));
    });
    source.addEventListener("open", () => tell(""));
    source.addEventListener("error", () => {
      const gone = source?.readyState === EventSource.CLOSED;
      tell(gone ? "Live updates have ended: load the page again." : "Connecting again…");
    });
  }

  if (root.dataset.live) {
    ahead = Date.now() - Date.parse(root.dataset.now);
    document.addEventListener("selectionchange", () => {
      for (const [name, html] of [...waiting]) replace(name, html);
    });
    clock = setInterval(tick, 1000);
    listen(root.dataset.live);
    tick();
  }
})();
