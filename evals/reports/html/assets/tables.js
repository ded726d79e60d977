// Sorting of tables by column, and filtering of all tables together.
const valueOf = (cell) => {
  if (!cell) return null;
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (text === "" || text === "–") return null;
  const number = Number(text.replace("−", "-").replace(/[ %]+$/, "").replaceAll(",", ""));
  return Number.isNaN(number) ? text : number;
};

const compare = (one, other) => {
  if (one === null || other === null) return (one === null) - (other === null) || 0;
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
};

const sort = (header) => {
  const row = header.parentElement;
  const place = [...row.children].indexOf(header);
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const each of row.children) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = row.closest("table").tBodies[0];
  const keyed = [...body.rows].map((each) => [valueOf(each.cells[place]), each]);
  keyed.sort(([one], [other]) => {
    // Unknown values come last in both directions.
    if (one === null || other === null) return compare(one, other);
    return down ? compare(other, one) : compare(one, other);
  });
  body.append(...keyed.map(([, each]) => each));
};

const header = (title, attributes = {}) =>
  make("th", { scope: "col", ...attributes }, make("button", { type: "button", class: "sort" }, title));

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.sort");
  if (button) sort(button.parentElement);
});

const form = document.getElementById("filters");

const selectedFilters = () => {
  const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)]));
  const { words: typed = "", ...picked } = values;
  return { picked: Object.entries(picked).filter(([, value]) => value !== ""), typed: typed.toLowerCase().split(/\s+/).filter(Boolean) };
};

const solvedOf = (row) => (row.outcome !== "graded" ? "infrastructure failure" : row.resolved ? "yes" : "no");

const matches = (row, { picked, typed }) =>
  picked.every(([name, value]) => (name === "solved" ? solvedOf(row) : row[name]) === value) &&
  typed.every((word) => row.searched.includes(word));

// A filter applies to a table if one of its columns has the filter's name and contains one of its values.
const ALIASES = { "handoff state": "state", "point kind": "point", "handoff point": "point", model: "successor" };
const plain = (text) => words(text).trim().toLowerCase();
const filterTable = (table, { picked }) => {
  const names = [...table.tHead.rows[0].cells].map((cell) => ALIASES[plain(cell.textContent)] ?? plain(cell.textContent));
  for (const [name, value] of picked) {
    const place = names.indexOf(name);
    const values = [...(form.elements[name]?.options ?? [])].map((option) => plain(option.value));
    const known = place >= 0 && [...table.tBodies[0].rows].some((row) => values.includes(plain(row.cells[place].textContent)));
    if (!known) continue;
    for (const row of table.tBodies[0].rows) row.hidden ||= plain(row.cells[place].textContent) !== plain(value);
  }
};

const filterTables = (filters) => {
  for (const table of document.querySelectorAll("table[data-table]")) {
    for (const row of table.tBodies[0].rows) row.hidden = false;
    filterTable(table, filters);
  }
};

const linkTo = (record, key = "", event = "") => {
  const parameters = new URLSearchParams({ point: record });
  if (key) parameters.set("run", key);
  if (event !== "") parameters.set("event", event);
  return `#${parameters}`;
};

const solvedMark = (row) => {
  const solved = solvedOf(row);
  const mark = { yes: "✓", no: "✗" }[solved] ?? "!";
  const label = { yes: "solved", no: "not solved" }[solved] ?? solved;
  return make("span", { class: `solved ${solved.split(" ")[0]}`, title: label, role: "img", "aria-label": label }, mark);
};

const COLUMNS = [
  ["task", (row) => make("a", { href: linkTo(row.record, row.key) }, row.task_id ?? row.record)],
  ["point", (row) => words(row.point)],
  ["state", (row) => words(row.state)],
  ["view", (row) => row.view],
  ["successor", (row) => row.successor],
  ["repeat", (row) => row.repeat, true],
  ["solved", solvedMark],
  ["events", (row) => row.events, true],
  ["Δ\u00a0events", (row) => row.delta, true, percent],
  ["prompt tokens", (row) => row.prompt_tokens, true],
  ["re-shown", (row) => row.reshown_tokens, true],
  ["re-shown\u00a0%", (row) => row.reshown_share, true, portion],
  ["rediscovery", (row) => row.rediscovery_events, true],
  ["kept\u00a0%", (row) => row.kept, true, portion],
  ["verified", (row) => answer(row.verified_before_finish)],
  ["harm", (row) => (row.harm ? "harm" : row.rescue ? "rescue" : "")],
  ["verification", (row) => row.verification_events, true],
  ["first prompt", (row) => row.first_prompt_chars, true],
  ["seconds", (row) => row.seconds, true, seconds],
  ["US dollars", (row) => row.cost_usd, true, dollars],
  ["stop reason", (row) => (row.outcome === "graded" ? words(row.stop_reason ?? "") : (row.detail ?? ""))],
];

const headerOf = ([name, , isNumber]) => header(name, { class: isNumber ? "number" : name === "solved" ? "center" : null });

const SHORT = new Set(["view", "point", "state", "successor", "agent"]);
const cellOf = ([name, valueOfRow, isNumber, format = count], row) => {
  const value = valueOfRow(row);
  if (name === "solved") return make("td", { class: "center", "data-value": solvedOf(row) }, value);
  return isNumber ? make("td", { class: "number", "data-value": value ?? "" }, format(value)) : make("td", { class: SHORT.has(name) ? "short" : null }, value ?? "");
};

const drawRows = (rows) => {
  const table = document.getElementById("rows");
  const hasRepeats = new Set(rows.map((row) => row.repeat)).size > 1;
  const columns = COLUMNS.filter(([name]) => name !== "repeat" || hasRepeats);
  table.append(make("thead", {}, make("tr", {}, ...columns.map(headerOf))));
  const body = make("tbody");
  for (const row of rows) {
    row.line = make("tr", { class: "opens" }, ...columns.map((column) => cellOf(column, row)));
    row.line.addEventListener("click", (event) => {
      if (!event.target.closest("a") && !String(getSelection())) location.hash = linkTo(row.record, row.key);
    });
    body.append(row.line);
  }
  table.append(body);
};

// Color for fewer or more events than under the repository view; the number is shown, too.
const shade = (delta) => {
  if (delta === null || delta === undefined || delta === 0) return "";
  const size = Math.min(3, 1 + Math.floor(Math.abs(delta) / 0.2));
  return `${delta < 0 ? "less" : "more"}-${size}`;
};

const matrixLink = (row) =>
  make(
    "a",
    { class: `run ${shade(row.delta)}`, href: linkTo(row.record, row.key), title: `${row.view}: ${solvedOf(row)}, Δ events ${percent(row.delta)}` },
    solvedMark(row),
    ` ${count(row.events)}`,
  );

const drawMatrix = (index) => {
  const table = document.getElementById("matrix");
  const successors = [...new Set(index.takeovers.map((row) => row.successor))];
  const views = index.views.filter((view) => index.takeovers.some((row) => row.view === view));
  const titles = ["task", "point", "state", ...(successors.length > 1 ? ["successor"] : []), ...views];
  table.append(make("thead", {}, make("tr", {}, ...titles.map((title) => header(title)))));
  const groups = Map.groupBy(index.takeovers, (row) => `${row.record}\n${row.successor}`);
  const body = make("tbody");
  for (const point of index.points) {
    const present = successors.filter((name) => groups.has(`${point.id}\n${name}`));
    for (const successor of present.length ? present : [successors[0] ?? ""]) {
      const rows = groups.get(`${point.id}\n${successor}`) ?? [];
      const cells = views.map((view) => {
        const ofView = rows.filter((row) => row.view === view);
        return make("td", { class: "runs", "data-value": ofView[0]?.events ?? "" }, ...ofView.map(matrixLink));
      });
      const line = make(
        "tr",
        {},
        make("th", { scope: "row" }, make("a", { href: linkTo(point.id) }, point.task_id)),
        make("td", {}, words(point.point)),
        make("td", {}, words(point.state)),
        successors.length > 1 ? make("td", {}, successor) : null,
        ...cells,
      );
      matrix.push([line, rows]);
      body.append(line);
    }
  }
  table.append(body);
};
const matrix = [];

const filter = (index) => {
  const filters = selectedFilters();
  let visible = 0;
  for (const row of index.takeovers) {
    row.line.hidden = !matches(row, filters);
    visible += !row.line.hidden;
  }
  const isUnfiltered = filters.picked.length === 0 && filters.typed.length === 0;
  for (const [line, rows] of matrix) line.hidden = !isUnfiltered && !rows.some((row) => !row.line.hidden);
  filterTables(filters);
  const all = index.takeovers.length;
  document.getElementById("count").textContent = visible === all ? plural(all, "takeover") : `${count(visible)} of ${plural(all, "takeover")}`;
};
