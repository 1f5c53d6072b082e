// The form: errors get the focus, a config.json can be chosen, and how much there is to try is said.
"use strict";

const form = document.getElementById("question");
const errors = document.getElementById("errors");
const at = (id) => document.getElementById(id);

if (errors) {
  errors.focus();
  errors.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    const field = link && at(link.getAttribute("href").slice(1));
    if (!field) return;
    event.preventDefault();
    field.focus();
    field.scrollIntoView({ block: "center" });
  });
}

function offerFile() {
  const config = at("f-config");
  const pick = document.createElement("input");
  pick.type = "file";
  pick.accept = ".json,application/json";
  pick.className = "file-pick";
  pick.setAttribute("aria-label", "Choose a config.json to paste");
  pick.addEventListener("change", async () => {
    const [file] = pick.files;
    if (!file) return;
    config.value = await file.text();
    config.rows = 10;
    at("f-workload-model").value = "";
  });
  config.after(pick);
}

// The service counts what is legal, once nobody types for a moment.
const QUIET_MS = 600;
const NEEDED = ["f-cluster-gpu", "f-workload-sequence-length", "f-workload-global-batch-size"];
let waiting = 0;
let latest = 0;

async function saySize() {
  const mine = ++latest;
  const size = at("size");
  const isFilled = NEEDED.every((id) => at(id).value.trim() || (id === "f-cluster-gpu" && at("f-cluster").value.trim()));
  if (!isFilled) return void (size.textContent = "");
  const body = new URLSearchParams(new FormData(form));
  body.set("check", "true");
  try {
    const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/html" } });
    if (mine !== latest) return;
    const page = answer.ok && !answer.redirected ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
    size.textContent = page?.getElementById("size")?.textContent ?? "";
  } catch {
    size.textContent = "";
  }
}

offerFile();
at("check").hidden = true;
form.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(saySize, QUIET_MS);
});
form.addEventListener("submit", () => { form.querySelector("button").disabled = true; });
window.addEventListener("pageshow", () => { form.querySelector("button").disabled = false; saySize(); });
