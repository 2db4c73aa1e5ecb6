// Switches between the light and the dark mode.

const KEPT = "fovea-theme";

/** Let a button switch the mode. Without a stored choice, the page begins in the system's mode. */
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
      // The browser blocks storage, so the choice ends with the page.
    }
  });
  try {
    show(localStorage.getItem(KEPT));
  } catch {
    show(null);
  }
}
