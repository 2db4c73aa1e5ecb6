// The tabs of the page: images, and streams, whose code is loaded when they are first shown.

const at = (id) => document.getElementById(id);
const TABS = ["images", "streams"];

/** The tab that is shown. */
export const tab = () => (location.hash === "#streams" ? "streams" : "images");

/** Show the tab that the address names, now and when it changes; `onShow` is told its name. */
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
