// Light or dark.

/** Let a button change from the system's mode to the other one, and back. */
export function wireTheme(button) {
  let dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const offer = () => (button.textContent = dark ? "Light" : "Dark");
  button.addEventListener("click", () => {
    dark = !dark;
    document.documentElement.style.colorScheme = dark ? "dark" : "light";
    offer();
  });
  offer();
}
