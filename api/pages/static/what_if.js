// What if: the prediction follows the knobs. Without this script the form sends them.
"use strict";

const QUIET_MS = 60;

const knobs = document.getElementById("knobs");
const result = document.getElementById("result");
const said = document.getElementById("said");
const from = knobs.elements.from;
let asking = null;
let waiting = 0;
let latest = 0;

function each(visit) {
  for (const one of knobs.querySelectorAll("[data-knob]")) visit(one, one.dataset.knob);
}

function slide(range) {
  const shown = range.closest(".knob");
  const text = shown.querySelectorAll(".knob-scale span")[Number(range.value)].textContent;
  shown.querySelector("output").textContent = text;
  range.setAttribute("aria-valuetext", text);
}

function place(controls) {
  each((one, knob) => {
    const { at, options } = controls[knob];
    const range = one.querySelector('input[type="range"]');
    const marks = one.querySelectorAll(range ? ".knob-scale span" : ".segment");
    options.forEach((option, number) => {
      marks[number].classList.toggle("is-moving", option.why !== "");
      if (option.why) marks[number].title = option.why;
      else marks[number].removeAttribute("title");
    });
    if (range) {
      range.value = String(at);
      slide(range);
    } else {
      marks[at].querySelector("input").checked = true;
    }
  });
}

async function show() {
  const mine = ++latest;
  if (asking) asking.abort();
  asking = new AbortController();
  result.setAttribute("aria-busy", "true");
  const asked = `${knobs.action}?${new URLSearchParams(new FormData(knobs))}`;
  try {
    const answer = await fetch(asked, { headers: { Accept: "application/json" }, signal: asking.signal });
    if (!answer.ok) throw new Error(String(answer.status));
    const found = await answer.json();
    if (mine !== latest) return;
    const open = result.querySelector("details")?.open;
    result.innerHTML = found.html;
    if (open && result.querySelector("details")) result.querySelector("details").open = true;
    from.value = found.from;
    place(found.controls);
    history.replaceState(null, "", found.path);
    said.textContent = found.said;
    document.getElementById("sum").textContent = found.summary;
  } catch (error) {
    if (error.name !== "AbortError" && mine === latest) knobs.submit();
  } finally {
    if (mine === latest) result.setAttribute("aria-busy", "false");
  }
}

knobs.addEventListener("input", (event) => {
  if (event.target.type === "range") slide(event.target);
  clearTimeout(waiting);
  waiting = setTimeout(show, QUIET_MS);
});
knobs.addEventListener("submit", (event) => {
  event.preventDefault();
  show();
});
