// The form: errors get the focus, a config.json can be chosen, and the cluster's size is said.
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

function whole(id) {
  const text = at(id).value.trim();
  return /^[0-9]{1,9}$/.test(text) ? Number(text) : NaN;
}

function saySize() {
  const kind = at("f-cluster-gpu").value.trim().toLowerCase();
  const ranks = whole("f-cluster-nodes") * whole("f-cluster-gpus-per-node");
  const tokens = whole("f-workload-sequence-length") * whole("f-workload-global-batch-size");
  const word = kind === "cpu" ? "CPU rank" : "GPU";
  const parts = [];
  if (ranks > 0 && !at("f-cluster").value.trim()) parts.push(`${ranks.toLocaleString("en")} ${word}${ranks === 1 ? "" : "s"}`);
  if (tokens > 0) parts.push(`${tokens.toLocaleString("en")} tokens in each optimizer step`);
  at("size").textContent = parts.join(", ");
}

offerFile();
form.addEventListener("input", saySize);
form.addEventListener("submit", () => { form.querySelector("button").disabled = true; });
window.addEventListener("pageshow", () => { form.querySelector("button").disabled = false; saySize(); });
