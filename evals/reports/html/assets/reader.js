// The panel below the timelines: an event, a successor's first messages, and its final diff.
const facts = (pairs) => {
  const list = make("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value === undefined || value === null || value === "") continue;
    list.append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  }
  return list;
};

const usageOf = (event) => {
  if (!event.usage) return null;
  const [prompt, cached, completion, estimated] = event.usage;
  const counts = [`${count(prompt)} prompt`, cached === null ? "" : `${count(cached)} cached`, `${count(completion)} completion`].filter(Boolean).join(", ");
  return `${counts}${estimated ? " (estimated)" : ""}`;
};

const fileOf = ([path, ranges]) => {
  const lines = ranges.map(([first, last]) => (first === last ? count(first) : `${count(first)}–${count(last)}`));
  return lines.length ? `${path}, lines ${lines.slice(0, 12).join(", ")}${lines.length > 12 ? ", …" : ""}` : path;
};

const eventPanel = (timeline, place, strings) => {
  const event = timeline.events?.[place];
  if (!event) return [make("p", { class: "note" }, timeline.missing ?? "Select an event above.")];
  const callArguments = Object.entries(event.arguments ?? {});
  return [
    make("h3", {}, `e${event.index} `, make("span", { class: "what" }, isAction(event) ? `action · ${event.tool}` : `observation · ${event.tool}`)),
    facts([
      ["re-shown", event.shown?.reshown ? `${share(event)}: ${count(event.shown.reshown)} of ${plural(event.shown.chars, "character")}` : null],
      ["files re-shown", event.shown?.files?.map(fileOf).join("; ")],
      ["rediscovery", event.kind && event.kind !== "verification" ? KINDS[event.kind] : null],
      ["class", event.kind === "verification" ? "verification (not debt)" : null],
      ["parallel call", event.parallel ? "yes; its tokens are those of the reply's first call" : null],
      ["exit code", event.exit_code],
      ["refused", event.refused ? "yes; not executed" : null],
      ["timed out", event.timed_out ? "yes" : null],
      ["validation", event.validation ? event.validation.map(words).join(" ") : null],
      ["source edited", event.edited?.join(", ")],
      ["files changed", event.changes?.join(", ")],
      ["handoff point", event.points?.map(words).join(", ")],
      ["tokens", usageOf(event)],
      ["seconds", event.seconds >= 0.05 ? seconds(event.seconds) : null],
    ]),
    event.shown?.lines?.length ? markedText(strings[event.text], event.shown.lines, event.shown.total) : pre(strings[event.text], "text"),
    Array.isArray(strings[event.text]) ? make("p", { class: "note" }, "Full text: ", make("code", {}, timeline.source), `, event ${event.index}.`) : null,
    ...callArguments.flatMap(([name, text]) => [make("h4", {}, name), pre(strings[text])]),
  ];
};

const SENDERS = { human: "to the agent", ai: "predecessor", tool: "tool result", system: "system" };
const messagesPanel = (timeline, strings) => {
  if (!timeline.view) return [make("p", { class: "note" }, timeline.unavailable)];
  const size = timeline.row.first_prompt_chars;
  const elements = [make("p", { class: "note" }, `${timeline.row.view === "continuation" ? "The conversation that it resumed" : `The ${timeline.row.view} view`}${size ? `: ${plural(size, "character")}, about ${plural(timeline.row.first_prompt_tokens, "token")}` : ""}.`)];
  for (const message of timeline.view) {
    if (message.omitted) elements.push(make("p", { class: "cut" }, `… ${message.omitted} …`));
    else
      elements.push(
        make(
          "section",
          { class: `message from-${message.from}` },
          make("h4", {}, SENDERS[message.from] ?? message.from),
          ...message.parts.map((part) => (typeof part === "string" ? make("p", { class: "cut" }, `… ${part} …`) : pre(strings[part]))),
        ),
      );
  }
  return elements;
};

const tabsOf = (timeline, place, strings) => {
  const tabs = [["event", "Event", () => eventPanel(timeline, place, strings)]];
  if (timeline.key) {
    tabs.push(["messages", "First messages", () => messagesPanel(timeline, strings)]);
    tabs.push(["diff", "Final diff", () => [diff(strings[timeline.patch], "No changes.")]]);
  } else {
    tabs.push(["task", "Task", () => [timeline.task === undefined ? make("p", { class: "note" }, timeline.unavailable) : pre(strings[timeline.task])]]);
    tabs.push(["diff", "Diff at the point", () => [timeline.task === undefined ? make("p", { class: "note" }, timeline.unavailable) : diff(strings[timeline.patch], "No changes yet.")]]);
  }
  return tabs;
};

const reader = (strings, leave) => {
  const title = make("h2", { id: "reader-title" });
  const list = make("div", { role: "tablist", class: "tabs", "aria-labelledby": "reader-title" });
  const panel = make("div", { role: "tabpanel", id: "reader-panel", class: "panel", tabindex: 0, "aria-labelledby": "reader-tab" });
  const box = make("section", { class: "reader", "aria-label": "Selected event" }, make("div", { class: "reader-head" }, title, list), panel);
  let openTab = "event";
  let selection = [null, null];
  const draw = () => {
    const [timeline, place] = selection;
    const tabs = tabsOf(timeline, place, strings);
    const current = tabs.find(([name]) => name === openTab) ?? tabs[0];
    title.replaceChildren(timeline.title, " ", make("small", {}, timeline.subtitle));
    list.replaceChildren(
      ...tabs.map(([name, label]) =>
        make(
          "button",
          { type: "button", role: "tab", "data-tab": name, id: name === current[0] ? "reader-tab" : null, "aria-selected": String(name === current[0]), "aria-controls": "reader-panel", tabindex: name === current[0] ? 0 : -1, onclick: () => show(timeline, place, name) },
          label,
        ),
      ),
    );
    panel.replaceChildren(...current[2]().filter(Boolean));
    panel.scrollTop = 0;
  };
  const show = (timeline, place, name = null) => {
    openTab = name ?? openTab;
    selection = [timeline, place];
    draw();
  };
  list.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const buttons = [...list.children];
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    const name = next.dataset.tab;
    show(...selection, name);
    list.querySelector(`[data-tab="${name}"]`).focus();
    event.preventDefault();
  });
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    leave();
  });
  return { box, show, focus: () => panel.focus() };
};
