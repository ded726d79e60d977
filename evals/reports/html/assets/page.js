// What is open, as the address says; the keys of the whole page; its colours.
const all = document.getElementById("all");
const box = document.getElementById("point");
const theme = document.getElementById("theme");
let opened = null;
let index = null;
let came = 0;

const wantedNow = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

const route = async () => {
  const wanted = wantedNow();
  const inside = wanted.point !== undefined;
  if (inside && all.hidden === false) came = scrollY;
  all.hidden = form.hidden = inside;
  box.hidden = !inside;
  document.body.classList.toggle("inside", inside);
  if (!inside) {
    opened = null;
    box.replaceChildren();
    const part = document.getElementById(location.hash.slice(1));
    if (part && all.contains(part) && location.hash !== "#points") part.scrollIntoView();
    else if (came) scrollTo(0, came);
    else part?.scrollIntoView();
    return;
  }
  if (opened?.point !== wanted.point) {
    opened = await openPoint(index, wanted, box);
    scrollTo(0, 0);
    box.focus({ preventScroll: true });
  }
  if (opened) chooseIn(opened, wanted);
  document.body.dataset.ready = location.hash;
};

const THEMES = { auto: ["◐ auto", "as the system has them"], light: ["○ light", "light"], dark: ["● dark", "dark"] };
const paint = (name) => {
  const [said, label] = THEMES[name];
  document.documentElement.dataset.theme = name;
  theme.textContent = said;
  theme.setAttribute("aria-label", `Colours: ${label}`);
};
// A browser may keep nothing for a file; then the choice lasts as long as the page.
const kept = (name) => {
  try {
    if (name) localStorage.setItem("takeover-colours", name);
    return localStorage.getItem("takeover-colours");
  } catch {
    return null;
  }
};
theme.addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  paint(next);
  kept(next);
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    if (opened || wantedNow().point) location.hash = "#takeovers";
    setTimeout(() => form.elements.words.focus());
  } else if (event.key === "Escape" && event.target === form.elements.words) {
    event.target.value = "";
    event.target.blur();
    filter(index);
  } else if (event.key === "Escape" && !typing && wantedNow().point) location.hash = "#points";
});

const begin = async () => {
  paint(THEMES[kept()] ? kept() : "auto");
  index = (await unpacked("index")).body;
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

begin().catch((error) => {
  all.prepend(make("p", { class: "caveat", role: "alert" }, `This page cannot be read here: ${error.message}. A browser of 2023 or later can.`));
  throw error;
});
