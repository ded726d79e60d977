// What every part of the page makes its elements with. A text only ever becomes a text: no markup is read from data.
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
const percent = (value) =>
  value === null || value === undefined ? "–" : `${value > 0 ? "+" : ""}${Math.round(100 * value)} %`.replace("-", "−");
const plural = (number, name) => `${count(number)} ${name}${number === 1 ? "" : "s"}`;

// Parts of the page are compressed; each is read once, when it is first asked for.
const parts = new Map();
const unpacked = (id) => {
  if (!parts.has(id)) parts.set(id, read(id));
  return parts.get(id);
};
const read = async (id) => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};

// A text that was cut is its two ends, with how much stands between them.
const textOf = (string) => {
  if (!Array.isArray(string)) return [string];
  const [head, left, tail] = string;
  return [head, make("span", { class: "cut" }, `… ${plural(left, "character")} left out …`), tail];
};

const pre = (string, name = "") => {
  const empty = string === "" || string === undefined;
  return make("pre", { class: name, tabindex: 0 }, ...(empty ? [make("i", {}, "nothing")] : textOf(string)));
};

const lineClass = (line) => {
  if (/^(diff |index |--- |\+\+\+ |new file|deleted file|old mode|new mode|similarity|rename )/.test(line)) return "about";
  if (line.startsWith("@@")) return "hunk";
  return line.startsWith("+") ? "plus" : line.startsWith("-") ? "minus" : "";
};

const diff = (string, nothing) => {
  if (string === "" || string === undefined) return make("p", { class: "note" }, nothing);
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
