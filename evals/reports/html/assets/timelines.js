// Timelines of agents on one scale: each event is a mark, and equal positions are aligned.
const KINDS = { read: "repeated read", search: "repeated search", command: "repeated command", verification: "verification" };
const OUTCOMES = { passed: "✓", failed: "✗" };

const isAction = (event) => event.label !== undefined;

const classesOf = (event) =>
  [
    "mark",
    isAction(event) ? "is-action" : "is-observation",
    `kind-${event.kind ?? "new"}`,
    event.edited ? "is-edit" : event.changes ? "is-change" : "",
    event.validation ? `is-${event.validation[1]}` : "",
    event.refused || event.tool === "unreadable" ? "is-refused" : "",
    event.points ? "is-point" : "",
    event.parallel ? "is-parallel" : "",
  ].filter(Boolean);

const share = ({ shown }) => `${Math.round((100 * shown.reshown) / shown.chars)} %`;
const quarterOf = ({ shown }) => (shown?.reshown ? Math.ceil((4 * shown.reshown) / shown.chars) : 0);

const labelOf = (event) =>
  [
    `event ${event.index}`,
    isAction(event) ? `action, ${event.tool}: ${event.label}` : `observation, ${event.tool}`,
    event.kind ? (event.kind === "verification" ? "verification" : `rediscovery: ${KINDS[event.kind]}`) : "",
    event.shown?.reshown ? `${share(event)} of the shown text was shown before` : "",
    event.parallel ? "parallel call of the reply before" : "",
    event.refused ? "refused" : "",
    event.timed_out ? "timed out" : "",
    event.exit_code !== undefined ? `exit code ${event.exit_code}` : "",
    event.edited ? `edited ${event.edited.join(", ")}` : event.changes ? `changed ${event.changes.join(", ")}` : "",
    event.validation ? `${words(event.validation[0])} ${words(event.validation[1])}` : "",
    event.points ? `handoff point: ${event.points.map(words).join(", ")}` : "",
  ]
    .filter(Boolean)
    .join("; ");

const markOf = (event, place) => {
  const outcome = event.validation ? (OUTCOMES[event.validation[1]] ?? "?") : "";
  const attributes = { role: "gridcell", tabindex: -1, class: classesOf(event).join(" "), "aria-label": labelOf(event), title: labelOf(event) };
  return make("span", { ...attributes, "data-place": place, "data-event": event.index }, outcome ? make("i", { "aria-hidden": "true" }, outcome) : null, shareMark(quarterOf(event)));
};
const shareMark = (quarters) => (quarters ? make("b", { class: `share quarters-${quarters}`, "aria-hidden": "true" }) : null);

const timelineRow = (timeline, number) => {
  const marks = make("div", { class: "marks", role: "none" });
  if (timeline.events?.length) marks.append(...timeline.events.map(markOf));
  else marks.append(make("span", { class: "missing", role: "gridcell", tabindex: -1, "data-place": 0 }, timeline.missing));
  if (timeline.ends) marks.append(make("span", { class: "ends", "aria-hidden": "true" }, timeline.ends));
  const head = make(
    "div",
    { class: "head", role: "rowheader" },
    make("button", { type: "button", tabindex: -1, "data-timeline-head": number }, timeline.mark ?? "", make("b", {}, timeline.title), make("small", {}, timeline.subtitle)),
  );
  return make("div", { class: `timeline ${timeline.key ? "" : "before"}`, role: "row", "data-timeline": number, "aria-label": `${timeline.title} ${timeline.subtitle}` }, head, marks);
};

const ruler = (length) => {
  const ticks = make("div", { class: "ticks" });
  for (let place = 0; place < length; place += 10) ticks.append(make("span", {}, place));
  return make("div", { class: "timeline ruler", "aria-hidden": "true" }, make("div", { class: "head" }, "event"), ticks);
};

const LEGEND = [
  ["kind-new is-action", "new action"],
  ["kind-new is-observation", "observation"],
  ["kind-new is-observation", "re-shown text: a quarter to all of it", "", 4],
  ["kind-read is-action", "repeated read"],
  ["kind-search is-action", "repeated search"],
  ["kind-command is-action", "repeated command"],
  ["kind-verification is-action", "verification (not debt)"],
  ["kind-new is-observation is-edit", "source edited"],
  ["kind-new is-observation is-passed", "validation passed", "✓"],
  ["kind-new is-observation is-failed", "validation failed", "✗"],
  ["kind-new is-action is-refused", "refused"],
  ["kind-new is-action is-parallel", "parallel call"],
];

// The external agent of a run: name and version, and requests beside its main conversation.
const agentOf = (row) => (row.agent ? [row.agent, row.agent_version].filter(Boolean).join(" ") : "");
const countsOf = (counts) =>
  Object.entries(counts ?? {})
    .map(([name, number]) => `${count(number)} ${name}`)
    .join("; ");
const requestsOf = (row) =>
  [row.side_requests ? plural(row.side_requests, "side request") : "", countsOf(row.refused_requests) ? `refused: ${countsOf(row.refused_requests)}` : ""].filter(Boolean).join("; ");
const legend = () =>
  make(
    "ul",
    { class: "legend", "aria-label": "Legend of the marks" },
    ...LEGEND.map(([name, text, mark, quarters]) => make("li", {}, make("span", { class: `mark ${name}`, "aria-hidden": "true" }, mark ? make("i", {}, mark) : null, shareMark(quarters)), text)),
  );

// The grid has one tab stop. Arrow keys move along a timeline, or to the one above or below.
const timelineGrid = (timelines, select, enter, leave) => {
  const grid = make("div", { class: "timelines", role: "grid", "aria-label": "Events of the predecessor and its successors", "aria-readonly": "true" });
  const length = Math.max(1, ...timelines.map((timeline) => timeline.events?.length ?? 0));
  grid.append(ruler(length), ...timelines.map(timelineRow));
  let selected = null;
  const cellsOf = (number) => grid.querySelectorAll(`[data-timeline="${number}"] [data-place]`);
  const mark = (number, place, focused) => {
    const cells = cellsOf(number);
    const cell = cells[Math.max(0, Math.min(place, cells.length - 1))];
    selected?.setAttribute("tabindex", "-1");
    selected?.removeAttribute("aria-selected");
    selected = cell;
    selected.setAttribute("tabindex", "0");
    selected.setAttribute("aria-selected", "true");
    for (const row of grid.querySelectorAll("[data-timeline]")) row.classList.toggle("chosen", row.dataset.timeline === String(number));
    if (focused) selected.focus({ preventScroll: false });
    return Number(selected.dataset.place);
  };
  const go = (number, place, focused = true) => select(number, mark(number, place, focused));
  grid.addEventListener("click", (event) => {
    const head = event.target.closest("[data-timeline-head]");
    const cell = event.target.closest("[data-place]");
    if (head) {
      mark(Number(head.dataset.timelineHead), 0, false);
      select(Number(head.dataset.timelineHead), null);
    } else if (cell) go(Number(cell.closest("[data-timeline]").dataset.timeline), Number(cell.dataset.place));
  });
  grid.addEventListener("keydown", (event) => {
    if (!selected || event.ctrlKey || event.metaKey || event.altKey) return;
    const number = Number(selected.closest("[data-timeline]").dataset.timeline);
    const place = Number(selected.dataset.place);
    const last = cellsOf(number).length - 1;
    const moves = {
      ArrowLeft: [number, Math.max(0, place - 1)],
      ArrowRight: [number, Math.min(last, place + 1)],
      ArrowUp: [Math.max(0, number - 1), place],
      ArrowDown: [Math.min(timelines.length - 1, number + 1), place],
      Home: [number, 0],
      End: [number, last],
    };
    if (moves[event.key]) go(...moves[event.key]);
    else if (event.key === "Enter" || event.key === " ") {
      go(number, place, false);
      enter();
    } else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return { grid, go, mark, back: () => selected?.focus() };
};
