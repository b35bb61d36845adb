// Selects the colours before anything is painted; without a choice those of the system.
try {
  const chosen = localStorage.getItem("sardonyx-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A page opened from a file may have no storage: then it follows the system.
}
document.documentElement.dataset.script = "yes"; // styles show interactive controls only if scripts run
