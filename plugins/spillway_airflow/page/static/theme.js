// Dark or light as Airflow is: it keeps its choice in the storage that both share. Runs before
// anything is drawn.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  function apply() {
    let chosen = null;
    try {
      chosen = localStorage.getItem("theme");
    } catch {
      // storage may be refused; then the system's choice holds
    }
    const dark = chosen === "dark" || (chosen !== "light" && system.matches);
    const theme = dark ? "dark" : "light";
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event("theme"));
  }
  apply();
  addEventListener("storage", apply);
  system.addEventListener("change", apply);
})();
