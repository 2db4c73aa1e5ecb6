// Light or dark.

const KEPT = "fovea-theme";

/** Let a button change from the system's mode to the other one, and back. */
export function wireTheme(button) {
  let dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const show = (chosen) => {
    if (chosen) document.documentElement.style.colorScheme = chosen;
    dark = chosen ? chosen === "dark" : dark;
    button.textContent = dark ? "Light" : "Dark";
  };
  button.addEventListener("click", () => {
    show(dark ? "light" : "dark");
    try {
      localStorage.setItem(KEPT, dark ? "dark" : "light");
    } catch {
      // A browser that keeps nothing forgets the choice with the page.
    }
  });
  try {
    show(localStorage.getItem(KEPT));
  } catch {
    show(null);
  }
}
