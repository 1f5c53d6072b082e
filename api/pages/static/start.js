// Tells style sheets that scripts run, before anything is drawn.
document.documentElement.classList.add("has-js");
