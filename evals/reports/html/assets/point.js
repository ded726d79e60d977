// One handoff point: the timelines of its predecessor and successors, and their effort.
const EFFORT = [
  ["view", (row) => row.view],
  ["successor", (row) => row.successor],
  ["repeat", (row) => row.repeat, true],
  ["solved", solvedMark],
  ["events", (row) => row.events, true],
  ["Δ\u00a0events", (row) => row.delta, true, percent],
  ["prompt tokens", (row) => row.prompt_tokens, true],
  ["Δ\u00a0tokens", (row) => row.tokenDelta, true, percent],
  ["cached tokens", (row) => row.cached_tokens, true],
  ["completion tokens", (row) => row.completion_tokens, true],
  ["uncounted calls", (row) => row.uncounted_calls, true],
  ["US dollars", (row) => row.cost_usd, true, dollars],
  ["seconds", (row) => row.seconds, true, seconds],
  ["vs uninterrupted", (row) => row.debt_vs_uninterrupted, true],
  ["re-shown", (row) => row.reshown_tokens, true],
  ["re-shown\u00a0%", (row) => row.reshown_share, true, portion],
  ["kept\u00a0%", (row) => row.kept, true, portion],
  ["reexamined", (row) => answer(row.reexamined)],
  ["verified", (row) => answer(row.verified_before_finish)],
  ["harm", (row) => answer(row.harm)],
  ["rescue", (row) => answer(row.rescue)],
  ["rediscovery", (row) => row.rediscovery_events, true],
  ["repeated reads", (row) => row.rediscovery?.read, true],
  ["repeated searches", (row) => row.rediscovery?.search, true],
  ["repeated commands", (row) => row.rediscovery?.command, true],
  ["verification", (row) => row.verification_events, true],
  ["first prompt", (row) => row.first_prompt_chars, true],
  ["agent", agentOf],
  ["side and refused requests", requestsOf],
  ["events as its session", (row) => countsOf(row.session_account)],
  ["stop reason", (row) => words(row.stop_reason ?? row.outcome)],
  ["grading", (row) => row.detail],
];

const AGENT_COLUMNS = new Set(["agent", "side and refused requests", "events as its session"]);

const effort = (rows, baseline) => {
  const base = (row) => rows.find((each) => each.view === baseline && each.successor === row.successor && each.repeat === row.repeat);
  for (const row of rows) {
    const baseTokens = base(row)?.prompt_tokens;
    row.tokenDelta = row.view !== baseline && baseTokens && row.prompt_tokens ? row.prompt_tokens / baseTokens - 1 : null;
  }
  const varies = (name) => new Set(rows.map((row) => row[name])).size > 1;
  const isUsed = ([name, value]) => !AGENT_COLUMNS.has(name) || rows.some((row) => value(row));
  const columns = EFFORT.filter(([name]) => (name !== "repeat" && name !== "successor") || varies(name)).filter(isUsed);
  const body = make("tbody", {}, ...rows.map((row) => make("tr", { class: row.view === baseline ? "baseline" : null }, ...columns.map((column) => cellOf(column, row)))));
  const table = make("table", { class: "sortable effort" }, make("thead", {}, make("tr", {}, ...columns.map(headerOf))), body);
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Effort" }, table);
};

const failureText = (row) => `infrastructure failure: ${row.detail ?? "no detail"}`;

const timelineOfRun = (row, details, varies) => {
  const run = details.runs[row.key] ?? {};
  return {
    key: row.key,
    row,
    title: row.view,
    subtitle: [
      agentOf(row) || (varies.successor ? row.successor : ""),
      varies.repeat ? `repeat ${row.repeat}` : "",
      row.outcome === "graded" ? `${plural(row.events, "event")}${row.delta === undefined || row.delta === null ? "" : `, ${percent(row.delta)}`}` : "failed",
      row.agent && varies.successor ? row.successor.slice(row.agent.length + 1) : "",
    ]
      .filter(Boolean)
      .join(" · "),
    mark: solvedMark(row),
    events: run.events,
    missing: row.outcome === "graded" ? `trace missing (${row.trace ?? "no name"}.json of run ${row.run})` : failureText(row),
    ends: row.outcome === "graded" ? words(row.stop_reason ?? "") : "",
    patch: run.patch,
    source: `traces/${row.trace}.json of run ${row.run}`,
    view: details.views?.[run.view_key],
    unavailable: row.outcome === "graded" ? "The handoff record is missing: its views cannot be shown." : failureText(row),
  };
};

const timelinesOf = (point, rows, chunk) => {
  const details = chunk.body.points[point.id];
  const hasRecord = details.timeline !== undefined;
  const events = hasRecord ? chunk.body.timelines[details.timeline].slice(0, details.event_index + 1) : details.full_trace;
  const varies = { successor: new Set(rows.map((row) => row.successor)).size > 1, repeat: new Set(rows.map((row) => row.repeat)).size > 1 };
  const before = {
    title: "predecessor",
    subtitle: point.agent ? `${agentOf(point)} · ${point.predecessor.slice(point.agent.length + 1)}` : (point.predecessor ?? ""),
    events,
    missing: "record and trace missing",
    ends: hasRecord ? "▸ handed over" : events ? "position of the handoff point unknown: record missing" : "",
    task: details.task,
    patch: details.patch,
    source: hasRecord ? `records/${point.id}/record.json` : "its trace",
    unavailable: "The handoff record is missing.",
  };
  return { details, timelines: [before, ...rows.map((row) => timelineOfRun(row, details, varies))] };
};

const pointHead = (point, details, index) => {
  const place = index.points.indexOf(point);
  const neighbor = (step, text, key) => {
    const other = index.points[place + step];
    return other ? make("a", { href: linkTo(other.id), rel: key, title: `${other.task_id}, ${words(other.point)}` }, text) : make("span", { class: "none" }, text);
  };
  return make(
    "header",
    { class: "point-head" },
    make("nav", { "aria-label": "Other handoff points" }, make("a", { href: "#points" }, "↑ all points"), neighbor(-1, "← previous", "prev"), neighbor(1, "next →", "next")),
    make("h1", {}, point.task_id, " ", make("small", {}, words(point.point))),
    facts([
      ["handoff state", make("b", { class: `state ${point.state}` }, words(point.state))],
      ["verdict at the point", point.detail],
      ["detected by", details.detail],
      ["after event", details.event_index],
      ["predecessor", point.predecessor],
      ["agent", agentOf(point)],
      ["side and refused requests", requestsOf(point)],
      ["record", make("code", {}, point.id)],
    ]),
  );
};

const openPoint = async (index, address, box) => {
  const point = index.points.find((each) => each.id === address.point);
  if (!point) {
    box.replaceChildren(make("p", { class: "caveat" }, `Handoff point ${address.point} not found. `, make("a", { href: "#points" }, "Show all handoff points.")));
    return null;
  }
  const chunk = await loadChunk(`chunk-${point.chunk}`);
  const order = (row) => index.views.indexOf(row.view);
  const rows = index.takeovers.filter((row) => row.record === point.id);
  rows.sort((one, other) => order(one) - order(other) || one.successor.localeCompare(other.successor) || one.repeat - other.repeat);
  const { details, timelines } = timelinesOf(point, rows, chunk);
  const panel = reader(chunk.strings, () => grid.back());
  const select = (number, place) => {
    const timeline = timelines[number];
    panel.show(timeline, place ?? 0, place === null ? (timeline.key ? "messages" : "task") : "event");
    const event = place === null ? "" : (timeline.events?.[place]?.index ?? "");
    history.replaceState(null, "", linkTo(point.id, timeline.key, event));
  };
  const grid = timelineGrid(timelines, select, () => panel.focus(), () => (location.hash = "#points"));
  box.replaceChildren(
    pointHead(point, details, index),
    make("section", { "aria-labelledby": "timelines-title" }, make("h2", { id: "timelines-title" }, "Timelines"), legend(), make("div", { class: "scroll" }, grid.grid),
      make("p", { class: "note keys" }, make("kbd", {}, "← →"), " along a timeline, ", make("kbd", {}, "↑ ↓"), " between timelines, ", make("kbd", {}, "Enter"), " opens an event, ", make("kbd", {}, "Esc"), " goes back")),
    panel.box,
    make("section", { "aria-labelledby": "effort-title" }, make("h2", { id: "effort-title" }, "Effort compared with the ", make("i", {}, index.baseline), " view"), rows.length ? effort(rows, index.baseline) : make("p", { class: "note" }, "No takeovers.")),
  );
  return { point: point.id, timelines, grid, panel };
};

const selectEvent = (opened, address) => {
  const number = address.run ? Math.max(0, opened.timelines.findIndex((timeline) => timeline.key === address.run)) : 0;
  const timeline = opened.timelines[number];
  const events = timeline.events ?? [];
  const place = address.event === undefined ? -1 : events.findIndex((event) => String(event.index) === address.event);
  const fallback = address.run || !events.length ? 0 : events.length - 1;
  opened.grid.mark(number, place < 0 ? fallback : place, false);
  const tab = address.event === undefined && address.run ? "messages" : "event";
  opened.panel.show(timeline, place < 0 ? fallback : place, tab);
};
