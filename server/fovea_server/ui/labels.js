// Places labels so that no label covers another.

/**
 * Find a place for each label near its box.
 * @param {{x1: number, y1: number, x2: number, y2: number}[]} boxes boxes of the objects, the best first
 * @param {{width: number, height: number}[]} sizes sizes of the labels
 * @param {{width: number, height: number}} area area that the labels must stay within
 * @returns {({x: number, y: number} | null)[]} top left corner of each label, or null if there is no room
 */
export function placeLabels(boxes, sizes, area) {
  const taken = [];
  return boxes.map((box, index) => {
    const { width, height } = sizes[index];
    const free = candidates(box, sizes[index], area).find(({ x, y }) => {
      const place = { x1: x, y1: y, x2: x + width, y2: y + height };
      return within(place, area) && !taken.some((other) => meet(place, other));
    });
    if (!free) return null;
    taken.push({ x1: free.x, y1: free.y, x2: free.x + width, y2: free.y + height });
    return free;
  });
}

/** List the places to try: above the box, inside at its top, below, beside, then down its left edge. */
function candidates(box, { width, height }, area) {
  const left = clamp(box.x1, 0, area.width - width);
  const right = clamp(box.x2 - width, 0, area.width - width);
  const inside = Math.max(box.y1, 0);
  const places = [
    { x: left, y: box.y1 - height },
    { x: left, y: inside },
    { x: right, y: box.y1 - height },
    { x: right, y: inside },
    { x: left, y: box.y2 },
    { x: right, y: box.y2 },
    { x: box.x2, y: inside },
    { x: box.x1 - width, y: inside },
  ];
  for (let y = inside + height; y + height <= box.y2; y += height) places.push({ x: left, y });
  return places;
}

const clamp = (value, least, most) => Math.max(least, Math.min(value, most));

const meet = (a, b) => a.x1 < b.x2 && b.x1 < a.x2 && a.y1 < b.y2 && b.y1 < a.y2;

const within = (place, { width, height }) =>
  place.x1 >= 0 && place.y1 >= 0 && place.x2 <= width && place.y2 <= height;
