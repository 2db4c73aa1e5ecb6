// Switches between the two tabs of the page: images and streams.

const at = (id) => document.getElementById(id);
const TABS = ["images", "streams"];

/** Return the name of the current tab. */
export const tab = () => (location.hash === "#streams" ? "streams" : "images");

/** Show the tab that the URL names, now and when the URL changes. `onShow` gets the name of the tab. */
export function wireTabs(onShow) {
  const show = () => {
    for (const name of TABS) {
      at(name).hidden = name !== tab();
      const link = at(`to-${name}`);
      if (name === tab()) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    at("live").hidden = tab() !== "images";
    onShow(tab());
  };
  addEventListener("hashchange", show);
  show();
}
