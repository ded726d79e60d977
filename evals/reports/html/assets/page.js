// Routing by the address, keyboard shortcuts, and the color theme.
const all = document.getElementById("all");
const box = document.getElementById("point");
const theme = document.getElementById("theme");
let opened = null;
let index = null;
let savedScroll = 0;

const readAddress = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

const route = async () => {
  const address = readAddress();
  const isPointOpen = address.point !== undefined;
  if (isPointOpen && all.hidden === false) savedScroll = scrollY;
  all.hidden = form.hidden = isPointOpen;
  box.hidden = !isPointOpen;
  document.body.classList.toggle("inside", isPointOpen);
  if (!isPointOpen) {
    opened = null;
    box.replaceChildren();
    const section = document.getElementById(location.hash.slice(1));
    if (section && all.contains(section) && location.hash !== "#points") section.scrollIntoView();
    else if (savedScroll) scrollTo(0, savedScroll);
    else section?.scrollIntoView();
    return;
  }
  if (opened?.point !== address.point) {
    opened = await openPoint(index, address, box);
    scrollTo(0, 0);
    box.focus({ preventScroll: true });
  }
  if (opened) selectEvent(opened, address);
  document.body.dataset.ready = location.hash;
};

const THEMES = { auto: ["◐ auto", "system default"], light: ["○ light", "light"], dark: ["● dark", "dark"] };
const paint = (name) => {
  const [text, label] = THEMES[name];
  document.documentElement.dataset.theme = name;
  theme.textContent = text;
  theme.setAttribute("aria-label", `Colors: ${label}`);
};
// Browsers may refuse storage for a file. The choice then lasts until the page is closed.
const storedTheme = (name) => {
  try {
    if (name) localStorage.setItem("takeover-colors", name);
    return localStorage.getItem("takeover-colors");
  } catch {
    return null;
  }
};
theme.addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  paint(next);
  storedTheme(next);
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    if (opened || readAddress().point) location.hash = "#takeovers";
    setTimeout(() => form.elements.words.focus());
  } else if (event.key === "Escape" && event.target === form.elements.words) {
    event.target.value = "";
    event.target.blur();
    filter(index);
  } else if (event.key === "Escape" && !typing && readAddress().point) location.hash = "#points";
});

const start = async () => {
  paint(THEMES[storedTheme()] ? storedTheme() : "auto");
  index = (await loadChunk("index")).body;
  for (const row of index.takeovers)
    row.searched = [row.task_id, row.point, row.state, row.view, row.successor, row.predecessor, row.stop_reason, row.detail, row.record].join(" ").toLowerCase();
  drawMatrix(index);
  drawRows(index.takeovers);
  filter(index);
  form.addEventListener("input", () => filter(index));
  form.addEventListener("reset", () => setTimeout(() => filter(index)));
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", route);
  await route();
  document.body.dataset.ready = location.hash || "#";
};

start().catch((error) => {
  all.prepend(make("p", { class: "caveat", role: "alert" }, `This browser cannot display the page: ${error.message}. Use a browser from 2023 or later.`));
  throw error;
});
