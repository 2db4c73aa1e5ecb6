// Colours of classes: the same as on the images that the server draws.

const STRENGTHS = [1, 0.85, 0.7];
let ids = new Map();

/** Give classes of these names the colours of their places in the list, whatever their ids. */
export function colourByName(names) {
  ids = new Map(names.map((name, id) => [name, id]).reverse());
}

/** The colour of what has a class. */
export const colourOf = ({ class_name, class_id }) => colour(ids.get(class_name) ?? class_id);

/** Red, green and blue of a class; golden-ratio steps of hue keep neighbouring ids apart. */
export function colour(classId) {
  const hue = (0.58 + classId * 0.618033988749895) % 1;
  const value = STRENGTHS[classId % 3];
  const channel = (shift) => {
    const k = (shift + hue * 6) % 6;
    return Math.round(255 * value * (1 - 0.85 * Math.max(0, Math.min(k, 4 - k, 1))));
  };
  return [channel(5), channel(3), channel(1)];
}

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

/** Black or white, whichever contrasts more with a colour (WCAG 2). */
export function ink(background) {
  const [red, green, blue] = background.map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}
