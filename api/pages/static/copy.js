// Buttons that copy: data-copy names the element whose text is copied, or what is marked in it.
"use strict";

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copy);
  const done = (await copied(source)) ? "Copied" : "Selected: press Ctrl+C";
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  button.textContent = done;
  announce(done);
  setTimeout(() => { button.textContent = before; }, 2000);
});

async function copied(source) {
  const marked = [...source.querySelectorAll("[data-copied]")];
  try {
    await navigator.clipboard.writeText((marked.length ? marked : [source]).map((one) => one.textContent).join(""));
    return true;
  } catch {
    // No clipboard without https, or it was refused: the older way, which needs a selection.
    const selection = document.getSelection();
    selection.selectAllChildren(marked.at(-1) ?? source);
    const worked = document.execCommand("copy");
    if (worked) selection.removeAllRanges();
    return worked;
  }
}

function announce(text) {
  let status = document.getElementById("copied");
  if (!status) {
    status = Object.assign(document.createElement("p"), { id: "copied", className: "visually-hidden" });
    status.setAttribute("role", "status");
    document.body.append(status);
  }
  status.textContent = text;
}
