// Timelines, one lane an agent, all on one scale: an event is a mark, and marks of one place stand below one another.
const KINDS = { read: "reads again", search: "searches again", command: "runs again", verification: "verification" };
const OUTCOMES = { passed: "✓", failed: "✗" };

const isAction = (event) => event.does !== undefined;

const classesOf = (event) =>
  [
    "mark",
    isAction(event) ? "is-action" : "is-observation",
    `kind-${event.kind ?? "new"}`,
    event.edited ? "is-edit" : event.changes ? "is-change" : "",
    event.validation ? `is-${event.validation[1]}` : "",
    event.refused || event.tool === "unreadable" ? "is-refused" : "",
    event.points ? "is-point" : "",
  ].filter(Boolean);

const labelOf = (event) =>
  [
    `event ${event.n}`,
    isAction(event) ? `action, ${event.tool}: ${event.does}` : `observation, ${event.tool}`,
    event.kind ? (event.kind === "verification" ? "verification" : `rediscovery: ${KINDS[event.kind]}`) : "",
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
  return make("span", { ...attributes, "data-place": place, "data-event": event.n }, outcome ? make("i", { "aria-hidden": "true" }, outcome) : null);
};

const laneOf = (lane, number) => {
  const marks = make("div", { class: "marks", role: "none" });
  if (lane.events?.length) marks.append(...lane.events.map(markOf));
  else marks.append(make("span", { class: "missing", role: "gridcell", tabindex: -1, "data-place": 0 }, lane.missing));
  if (lane.ends) marks.append(make("span", { class: "ends", "aria-hidden": "true" }, lane.ends));
  const head = make(
    "div",
    { class: "head", role: "rowheader" },
    make("button", { type: "button", tabindex: -1, "data-lane-head": number }, lane.mark ?? "", make("b", {}, lane.title), make("small", {}, lane.said)),
  );
  return make("div", { class: `lane ${lane.key ? "" : "before"}`, role: "row", "data-lane": number, "aria-label": `${lane.title} ${lane.said}` }, head, marks);
};

const ruler = (length) => {
  const ticks = make("div", { class: "ticks" });
  for (let place = 0; place < length; place += 10) ticks.append(make("span", {}, place));
  return make("div", { class: "lane ruler", "aria-hidden": "true" }, make("div", { class: "head" }, "event"), ticks);
};

const LEGEND = [
  ["kind-new is-action", "new work, an action"],
  ["kind-new is-observation", "what it showed"],
  ["kind-read is-action", "reads again"],
  ["kind-search is-action", "searches again"],
  ["kind-command is-action", "runs again"],
  ["kind-verification is-action", "verification, no debt"],
  ["kind-new is-observation is-edit", "source edited"],
  ["kind-new is-observation is-passed", "validation passed", "✓"],
  ["kind-new is-observation is-failed", "validation failed", "✗"],
  ["kind-new is-action is-refused", "refused"],
];
const legend = () =>
  make(
    "ul",
    { class: "legend", "aria-label": "What the marks mean" },
    ...LEGEND.map(([name, said, mark]) => make("li", {}, make("span", { class: `mark ${name}`, "aria-hidden": "true" }, mark ? make("i", {}, mark) : null), said)),
  );

// One stop of the tab key; arrows go along a lane and to the lane above or below.
const timeline = (lanes, choose, enter, leave) => {
  const grid = make("div", { class: "timeline", role: "grid", "aria-label": "Events of the predecessor and of its successors", "aria-readonly": "true" });
  const length = Math.max(1, ...lanes.map((lane) => lane.events?.length ?? 0));
  grid.append(ruler(length), ...lanes.map(laneOf));
  let at = null;
  const cellsOf = (number) => grid.querySelectorAll(`[data-lane="${number}"] [data-place]`);
  const mark = (lane, place, focused) => {
    const cells = cellsOf(lane);
    const cell = cells[Math.max(0, Math.min(place, cells.length - 1))];
    at?.setAttribute("tabindex", "-1");
    at?.removeAttribute("aria-selected");
    at = cell;
    at.setAttribute("tabindex", "0");
    at.setAttribute("aria-selected", "true");
    for (const row of grid.querySelectorAll("[data-lane]")) row.classList.toggle("chosen", row.dataset.lane === String(lane));
    if (focused) at.focus({ preventScroll: false });
    return Number(at.dataset.place);
  };
  const go = (lane, place, focused = true) => choose(lane, mark(lane, place, focused));
  grid.addEventListener("click", (event) => {
    const head = event.target.closest("[data-lane-head]");
    const cell = event.target.closest("[data-place]");
    if (head) {
      mark(Number(head.dataset.laneHead), 0, false);
      choose(Number(head.dataset.laneHead), null);
    } else if (cell) go(Number(cell.closest("[data-lane]").dataset.lane), Number(cell.dataset.place));
  });
  grid.addEventListener("keydown", (event) => {
    if (!at || event.ctrlKey || event.metaKey || event.altKey) return;
    const lane = Number(at.closest("[data-lane]").dataset.lane);
    const place = Number(at.dataset.place);
    const last = cellsOf(lane).length - 1;
    const moves = {
      ArrowLeft: [lane, Math.max(0, place - 1)],
      ArrowRight: [lane, Math.min(last, place + 1)],
      ArrowUp: [Math.max(0, lane - 1), place],
      ArrowDown: [Math.min(lanes.length - 1, lane + 1), place],
      Home: [lane, 0],
      End: [lane, last],
    };
    if (moves[event.key]) go(...moves[event.key]);
    else if (event.key === "Enter" || event.key === " ") {
      go(lane, place, false);
      enter();
    } else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return { grid, go, mark, back: () => at?.focus() };
};
