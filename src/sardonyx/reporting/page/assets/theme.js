// Which colours to use, before anything is painted; "system" is the absence of a choice.
try {
  const chosen = localStorage.getItem("sardonyx-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A page opened from a file may be refused storage: then it follows the system.
}
document.documentElement.dataset.script = "yes"; // styles show what answers only where something answers
