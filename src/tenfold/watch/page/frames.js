// A snapshot of a film as it lies in its file, once inflated: for each text the maps of all heads, each the lower
// triangle row by row as 4 bits of the root of the probability, two to a byte; then for each text the losses of its
// tokens.

const LEVELS = 15; // the largest 4 bits

/** Where everything of a text lies: { tokens, cells (of a map), start (its byte), losses (their byte) }. */
export function layoutOf(film) {
  const texts = film.texts.map(({ ids: { length } }) => ({ tokens: length, cells: (length * (length + 1)) / 2 }));
  let end = 0;
  for (const text of texts) [text.start, end] = [end, end + Math.ceil((film.layers * film.heads * text.cells) / 2)];
  for (const text of texts) [text.losses, end] = [end, end + 4 * text.tokens];
  return texts;
}

/** Bytes of a snapshot whose texts lie so. */
export const sizeOf = (layouts) => layouts.at(-1).losses + 4 * layouts.at(-1).tokens;

/** Losses of a text's tokens, NaN for the first. */
export function lossesOf(bytes, text) {
  const view = new DataView(bytes.buffer, bytes.byteOffset + text.losses, 4 * text.tokens);
  return Array.from({ length: text.tokens }, (_, i) => view.getFloat32(4 * i, true));
}

/** What the token `query` attends to: the probability of each token up to it. */
export function attention(bytes, text, map, query) {
  const first = map * text.cells + (query * (query + 1)) / 2;
  return Array.from({ length: query + 1 }, (_, key) => (level(bytes, text, first + key) / LEVELS) ** 2);
}

const level = (bytes, text, cell) => (bytes[text.start + (cell >> 1)] >> (4 * (cell & 1))) & LEVELS;

/** Paints a map into pixels (one 32-bit number each, `stride` a row) from the pixel `corner` on. */
export function paintMap(bytes, text, map, pixels, corner, stride, colors) {
  let cell = map * text.cells;
  for (let query = 0; query < text.tokens; query++) {
    let pixel = corner + query * stride;
    for (let key = 0; key <= query; key++) pixels[pixel++] = colors[level(bytes, text, cell++)];
  }
}

/** The 16 colours of a map in the page's colours of now, from the paper to the ink. */
export function mapColors() {
  const style = getComputedStyle(document.documentElement);
  const stops = ["--map-low", "--map-middle", "--map-high"].map((name) =>
    style.getPropertyValue(name).trim().match(/[0-9a-f]{2}/gi).map((pair) => parseInt(pair, 16)));
  return Uint32Array.from({ length: LEVELS + 1 }, (_, i) => {
    const place = (2 * i) / LEVELS, from = Math.min(1, Math.floor(place));
    const between = (a, b) => Math.round(a + (place - from) * (b - a));
    const [r, g, b] = [0, 1, 2].map((channel) => between(stops[from][channel], stops[from + 1][channel]));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0; // little-endian, as every machine with a browser is
  });
}
