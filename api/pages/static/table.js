// Sorts and filters the table of probes in place; without it its links load the page again.
"use strict";

(() => {
  const DEFAULT = "-speed";
  const part = () => document.getElementById("probes");

  function chosen() {
    const query = new URLSearchParams(location.search);
    return { sort: query.get("sort") ?? DEFAULT, outcome: query.get("outcome") ?? "" };
  }

  function address({ sort, outcome }) {
    const query = new URLSearchParams(location.search);
    sort === DEFAULT ? query.delete("sort") : query.set("sort", sort);
    outcome ? query.set("outcome", outcome) : query.delete("outcome");
    const text = query.toString();
    return `${location.pathname}${text ? `?${text}` : ""}#probes`;
  }

  // A cell's number, if it begins with one; "-" is nothing, which goes last either way.
  function value(row, column) {
    const text = row.cells[column].textContent.trim();
    if (text === "-") return null;
    const number = text.replace(/^[#>]\s*/, "").replaceAll(",", "");
    if (/^\d/.test(number) && /(\d|s|min|h)$/.test(number)) return seconds(number);
    return text;
  }

  // Durations in seconds, all other numbers as they are.
  function seconds(text) {
    const clock = text.match(/^([\d:.]+)(?: (s|min|h))?$/);
    if (!clock) return text;
    const parts = clock[1].split(":").map(Number);
    const all = parts.reduce((sum, one) => sum * 60 + one, 0);
    return clock[2] === "h" && parts.length === 1 ? all * 3600 : all;
  }

  function compared(one, other) {
    if (typeof one === "number" && typeof other === "number") return one - other;
    return String(one).localeCompare(String(other), "en", { numeric: true });
  }

  function sortRows(section, sort) {
    const key = sort.replace(/^-/, "");
    const heads = [...section.querySelectorAll("thead th")];
    const column = heads.findIndex((head) => head.dataset.key === key);
    if (column < 0) return;
    const down = sort.startsWith("-");
    heads.forEach((head, place) => {
      if (place === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const body = section.querySelector("tbody");
    const rows = [...body.rows].map((row) => ({ row, value: value(row, column), id: value(row, 0) }));
    rows.sort((one, other) => {
      if (one.value === null || other.value === null) {
        return (one.value === null) - (other.value === null) || one.id - other.id;
      }
      const order = compared(one.value, other.value);
      return (down ? -order : order) || one.id - other.id;
    });
    body.append(...rows.map(({ row }) => row));
  }

  function filterRows(section, outcome) {
    const shown = `o-${outcome}`;
    for (const row of section.querySelectorAll("tbody tr")) {
      row.hidden = Boolean(outcome) && !row.querySelector(`.${CSS.escape(shown)}`);
    }
    for (const link of section.querySelectorAll("[data-outcome]")) {
      if (link.dataset.outcome === outcome) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }

  function apply() {
    const section = part();
    if (!section) return;
    const { sort, outcome } = chosen();
    filterRows(section, outcome);
    sortRows(section, sort);
    for (const link of section.querySelectorAll("[data-outcome]")) {
      link.href = address({ sort, outcome: link.dataset.outcome });
    }
    for (const head of section.querySelectorAll("thead th")) {
      const key = head.dataset.key;
      const now = head.getAttribute("aria-sort");
      const falls = head.classList.contains("number") || key in numbers(section);
      const next = now ? (now === "descending" ? key : `-${key}`) : falls ? `-${key}` : key;
      head.querySelector("a").href = address({ sort: next, outcome });
    }
  }

  // Columns of numbers are sorted from the largest first.
  function numbers(section) {
    const found = {};
    const first = section.querySelector("tbody tr");
    if (!first) return found;
    [...section.querySelectorAll("thead th")].forEach((head, place) => {
      if (place && typeof value(first, place) === "number") found[head.dataset.key] = true;
    });
    return found;
  }

  // The server's page may hold one outcome only: then all rows are asked for first.
  let whole = !new URLSearchParams(location.search).get("outcome");

  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target.closest("#probes thead a, #probes .chips a");
    if (!link || !whole) return;
    event.preventDefault();
    history.replaceState(null, "", link.href);
    apply();
  });
  document.addEventListener("part", (event) => {
    if (event.target.dataset.part !== "probes") return;
    whole = true; // parts that come later hold all
    apply();
  });
})();
