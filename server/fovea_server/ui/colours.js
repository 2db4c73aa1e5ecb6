// Colours of classes, of their instances, and of the text on them. They equal the colours on images that
// the server draws: `python -m tools.colours` copies PALETTE and SHADES from the server.

const PALETTE = "1e78ffff781e00ff96007800a50078f078ff96d2ffffd2002db487964b001e6987785af0ff4b5ac38700ffa5a5c32da5c387e100f0ffb4e10000a500b400000096b44b3cd25a692dd2695affa52d964b96ffb4ff69d2c39678ff87a500f05ac32d78b44be15a00875ae12d00ffc387871eb4874b5a00c3ffd2a5ffa5a569c35ae1005ab478f0c3ff789600c33c7887c35a8700d20f5aa5694bd2c3ffd2b400a53cc3694b871e5ae1ff87d200d2966996ff5a9669e13c87a51e4be18769d2e187a569c3876900693cb4e1a5d287c31e69a5d21e87870fa55ab44b5af05a1ed2b4786978f0a5780f96f087d287a5ff96ff96b4ff00b4c3873cd296699678b469e1963c2d87e1c35a00d2d23ce16987878700a596ff78c3e1960096785ab469e196";
const SHADES = [0, 50, 25, 70];
// Each item's index in SHADES.
const shades = new WeakMap();
let ids = new Map();

/**
 * Choose colours by the position of a class name in this list. Compared models may have different ids for
 * the same class.
 */
export function colourByName(names) {
  ids = new Map(names.map((name, id) => [name, id]).reverse());
}

/** Return the colour of an item as [red, green, blue]. */
export const colourOf = (item) => colour(ids.get(item.class_name) ?? item.class_id, shades.get(item));

/** Return a class's colour as [red, green, blue], 0 to 255 each. `shade` is an index in SHADES. */
export function colour(classId, shade = 0) {
  const at = (6 * classId) % PALETTE.length;
  const base = [0, 2, 4].map((each) => parseInt(PALETTE.slice(at + each, at + each + 2), 16));
  const weight = SHADES[shade];
  const other = shade && ink(base) === "#fff" ? 255 * weight : 0;
  return base.map((each) => Math.floor((each * (100 - weight) + other) / 100));
}

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

/** Return black or white, whichever contrasts more with the background (WCAG 2). */
export function ink(background) {
  const [red, green, blue] = background.map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

/** Give touching masks of one class different shades. `items` are sorted, the best first. */
export function shadeApart(items) {
  const masked = items.filter(({ mask }) => mask);
  masked.forEach((item, index) => {
    const taken = SHADES.map(() => 0);
    for (const other of masked.slice(0, index)) {
      if (other.class_id === item.class_id && touch(item.box, other.box)) taken[shades.get(other)] += 1;
    }
    shades.set(item, taken.indexOf(Math.min(...taken)));
  });
}

const touch = (a, b) => a.x1 <= b.x2 && b.x1 <= a.x2 && a.y1 <= b.y2 && b.y1 <= a.y2;
