// The list of studies: how many are ticked, and open studies looked up again while somebody looks.
"use strict";

const EVERY_MS = 10000;
const MOST = 4;

const button = document.getElementById("compare-button");
const ticks = () => [...document.querySelectorAll('input[name="ids"]')];

function count() {
  const all = ticks();
  const ticked = all.filter((one) => one.checked).length;
  button.disabled = ticked < 2;
  button.textContent = ticked < 2 ? "Tick two to four to compare" : `Compare these ${ticked}`;
  for (const one of all) one.disabled = ticked >= MOST && !one.checked;
}

function replaced(fresh) {
  const moved = [];
  for (const line of fresh.querySelectorAll('.study')) {
    const old = document.getElementById(line.id);
    if (!old || !("moving" in old.dataset) || old.contains(document.activeElement)) continue;
    if (old.textContent === line.textContent) continue;
    line.querySelector("input").checked = old.querySelector("input").checked;
    line.classList.add("is-new");
    old.replaceWith(document.adoptNode(line));
    moved.push(line.querySelector("th").textContent.trim());
  }
  const made = fresh.getElementById("made-at");
  if (made) document.getElementById("made-at").replaceWith(document.adoptNode(made));
  if (moved.length) document.getElementById("moved").textContent = `New of ${moved.join(", ")}`;
  count();
}

async function again() {
  if (document.hidden || !document.querySelector(".study[data-moving]")) return;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok || answer.redirected) return;
    replaced(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch {
    // The service is away for a moment: the list says when it was made.
  }
}

if (button) {
  document.addEventListener("change", (event) => event.target.name === "ids" && count());
  document.addEventListener("visibilitychange", again);
  window.addEventListener("pageshow", count);
  setInterval(again, EVERY_MS);
  count();
}
