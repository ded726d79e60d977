// Helpers that create elements. Text is inserted as text only: markup in data is never parsed.
const make = (name, attributes = {}, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
};

const words = (name) => String(name).replaceAll("_", " ");
const count = (value) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en"));
const seconds = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 }));
const dollars = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en", { minimumFractionDigits: 4, maximumFractionDigits: 4 }));
const percent = (value) =>
  value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${Math.round(100 * value)} %`.replace("-", "−");
const portion = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
const answer = (value) => (value === null || value === undefined ? "–" : value ? "yes" : "no");
const plural = (number, name) => `${count(number)} ${name}${number === 1 ? "" : "s"}`;

// Chunks of the page are compressed; each is decompressed once, on first use.
const chunks = new Map();
const loadChunk = (id) => {
  if (!chunks.has(id)) chunks.set(id, decompress(id));
  return chunks.get(id);
};
const decompress = async (id) => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};

// A truncated text is an array: its two ends, with the number of omitted characters between them.
const textOf = (string) => {
  if (!Array.isArray(string)) return [string];
  const [head, omitted, tail] = string;
  return [head, make("span", { class: "cut" }, `… ${plural(omitted, "character")} omitted …`), tail];
};

const pre = (string, name = "") => {
  const empty = string === "" || string === undefined;
  return make("pre", { class: name, tabindex: 0 }, ...(empty ? [make("i", {}, "empty")] : textOf(string)));
};

// Lines of a text, some of them marked. `ranges` are line indices with both ends included, of `total` lines.
const markedText = (string, ranges, total) => {
  const box = make("pre", { class: "text", tabindex: 0 });
  const isMarked = (index) => ranges.some(([first, last]) => first <= index && index <= last);
  for (const [number, piece] of textOf(string).entries()) {
    if (typeof piece !== "string") {
      box.append(piece);
      continue;
    }
    const lines = piece.split("\n");
    const start = number === 0 ? 0 : total - lines.length;
    for (const [index, line] of lines.entries()) {
      const text = index < lines.length - 1 ? `${line}\n` : line;
      box.append(isMarked(start + index) && line.trim() ? make("mark", { class: "reshown" }, text) : text);
    }
  }
  return box;
};

const lineClass = (line) => {
  if (/^(diff |index |--- |\+\+\+ |new file|deleted file|old mode|new mode|similarity|rename )/.test(line)) return "about";
  if (line.startsWith("@@")) return "hunk";
  return line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : "";
};

const diff = (string, emptyText) => {
  if (string === "" || string === undefined) return make("p", { class: "note" }, emptyText);
  const box = make("pre", { class: "diff", tabindex: 0 });
  for (const piece of textOf(string)) {
    if (typeof piece !== "string") {
      box.append(piece);
      continue;
    }
    for (const line of piece.split("\n")) box.append(make("span", { class: lineClass(line) }, `${line}\n`));
  }
  return box;
};
