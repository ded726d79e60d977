// One handoff point: its predecessor above, its successors below, what they did and what it took.
const EFFORT = [
  ["view", (row) => row.view],
  ["successor", (row) => row.successor],
  ["repeat", (row) => row.repeat, true],
  ["solved", solvedMark],
  ["events", (row) => row.events, true],
  ["Δ\u00a0events", (row) => row.delta, true, percent],
  ["prompt tokens", (row) => row.prompt_tokens, true],
  ["Δ\u00a0tokens", (row) => row.tokenDelta, true, percent],
  ["completion", (row) => row.completion_tokens, true],
  ["seconds", (row) => row.seconds, true, seconds],
  ["rediscovery", (row) => row.rediscovery_events, true],
  ["of it read", (row) => row.rediscovery?.read, true],
  ["search", (row) => row.rediscovery?.search, true],
  ["command", (row) => row.rediscovery?.command, true],
  ["verification", (row) => row.verification_events, true],
  ["first prompt", (row) => row.first_prompt_chars, true],
  ["ended", (row) => words(row.stop_reason ?? row.outcome)],
  ["grading", (row) => row.detail],
];

const effort = (rows, baseline) => {
  const base = (row) => rows.find((each) => each.view === baseline && each.successor === row.successor && each.repeat === row.repeat);
  for (const row of rows) {
    const plainTokens = base(row)?.prompt_tokens;
    row.tokenDelta = row.view !== baseline && plainTokens && row.prompt_tokens ? row.prompt_tokens / plainTokens - 1 : null;
  }
  const many = (name) => new Set(rows.map((row) => row[name])).size > 1;
  const columns = EFFORT.filter(([name]) => (name !== "repeat" && name !== "successor") || many(name));
  const body = make("tbody", {}, ...rows.map((row) => make("tr", { class: row.view === baseline ? "baseline" : null }, ...columns.map((column) => cellOf(column, row)))));
  const table = make("table", { class: "sortable effort" }, make("thead", {}, make("tr", {}, ...columns.map(headerOf))), body);
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Effort" }, table);
};

const failedLane = (row) => `infrastructure failure: ${row.detail ?? "no detail"}`;

const laneOfRun = (row, told, story, several) => {
  const run = story.runs[row.key] ?? {};
  return {
    key: row.key,
    row,
    title: row.view,
    said: [
      several.successor ? row.successor : "",
      several.repeat ? `repeat ${row.repeat}` : "",
      row.outcome === "graded" ? `${plural(row.events, "event")}${row.delta === undefined || row.delta === null ? "" : `, ${percent(row.delta)}`}` : "failed",
    ]
      .filter(Boolean)
      .join(" · "),
    mark: solvedMark(row),
    events: run.events,
    missing: row.outcome === "graded" ? `its trace was not at hand (${row.trace ?? "no name"}.json of run ${row.run})` : failedLane(row),
    ends: row.outcome === "graded" ? words(row.stop_reason ?? "") : "",
    patch: run.patch,
    whole: `traces/${row.trace}.json of run ${row.run}`,
    view: story.views?.[run.given],
    unseen: row.outcome === "graded" ? "The handoff record was not at hand, so its views cannot be shown." : failedLane(row),
  };
};

const lanesOf = (point, rows, told) => {
  const story = told.body.points[point.id];
  const until = story.event_index;
  const events = story.lane === undefined ? story.whole : told.body.lanes[story.lane].slice(0, until + 1);
  const several = { successor: new Set(rows.map((row) => row.successor)).size > 1, repeat: new Set(rows.map((row) => row.repeat)).size > 1 };
  const before = {
    title: "predecessor",
    said: point.predecessor ?? "",
    events,
    missing: "neither its record nor its trace was at hand",
    ends: story.lane === undefined ? (events ? "where the point lies in it is not known: the record was not at hand" : "") : "▸ handed over",
    task: story.task,
    patch: story.patch,
    whole: story.lane === undefined ? "its trace" : `records/${point.id}/record.json`,
    unseen: "The handoff record was not at hand.",
  };
  return { story, lanes: [before, ...rows.map((row) => laneOfRun(row, told, story, several))] };
};

const pointHead = (point, story, index) => {
  const place = index.points.indexOf(point);
  const near = (step, said, key) => {
    const other = index.points[place + step];
    return other ? make("a", { href: linkTo(other.id), rel: key, title: `${other.task_id}, ${words(other.point)}` }, said) : make("span", { class: "none" }, said);
  };
  return make(
    "header",
    { class: "point-head" },
    make("nav", { "aria-label": "Other handoff points" }, make("a", { href: "#points" }, "↑ all points"), near(-1, "← previous", "prev"), near(1, "next →", "next")),
    make("h1", {}, point.task_id, " ", make("small", {}, words(point.point))),
    facts([
      ["handoff state", make("b", { class: `state ${point.state}` }, words(point.state))],
      ["graded at the point", point.detail],
      ["fired by", story.detail],
      ["after event", story.event_index],
      ["predecessor", point.predecessor],
      ["record", make("code", {}, point.id)],
    ]),
  );
};

const openPoint = async (index, wanted, box) => {
  const point = index.points.find((each) => each.id === wanted.point);
  if (!point) {
    box.replaceChildren(make("p", { class: "caveat" }, `There is no handoff point ${wanted.point} here. `, make("a", { href: "#points" }, "See those there are.")));
    return null;
  }
  const told = await unpacked(`part-${point.part}`);
  const order = (row) => index.views.indexOf(row.view);
  const rows = index.takeovers.filter((row) => row.record === point.id);
  rows.sort((one, other) => order(one) - order(other) || one.successor.localeCompare(other.successor) || one.repeat - other.repeat);
  const { story, lanes } = lanesOf(point, rows, told);
  const below = reader(told.strings, () => line.back());
  const choose = (number, place) => {
    const lane = lanes[number];
    below.show(lane, place ?? 0, place === null ? (lane.key ? "messages" : "task") : "event");
    const event = place === null ? "" : (lane.events?.[place]?.n ?? "");
    history.replaceState(null, "", linkTo(point.id, lane.key, event));
  };
  const line = timeline(lanes, choose, () => below.focus(), () => (location.hash = "#points"));
  box.replaceChildren(
    pointHead(point, story, index),
    make("section", { class: "lanes", "aria-labelledby": "lanes-title" }, make("h2", { id: "lanes-title" }, "What was done"), legend(), make("div", { class: "scroll" }, line.grid),
      make("p", { class: "note keys" }, make("kbd", {}, "← →"), " along a lane, ", make("kbd", {}, "↑ ↓"), " between lanes, ", make("kbd", {}, "Enter"), " reads, ", make("kbd", {}, "Esc"), " goes back")),
    below.box,
    make("section", { "aria-labelledby": "effort-title" }, make("h2", { id: "effort-title" }, "What it took, against the ", make("i", {}, index.baseline), " view"), rows.length ? effort(rows, index.baseline) : make("p", { class: "note" }, "Nobody has taken it over.")),
  );
  return { point: point.id, lanes, line, below };
};

const chooseIn = (opened, wanted) => {
  const found = wanted.run ? opened.lanes.findIndex((lane) => lane.key === wanted.run) : 0;
  const lane = Math.max(0, found);
  const events = opened.lanes[lane].events ?? [];
  const place = wanted.event === undefined ? -1 : events.findIndex((event) => String(event.n) === wanted.event);
  const last = wanted.run || !events.length ? 0 : events.length - 1;
  opened.line.mark(lane, place < 0 ? last : place, false);
  const tab = wanted.event === undefined && wanted.run ? "messages" : "event";
  opened.below.show(opened.lanes[lane], place < 0 ? last : place, tab);
};
