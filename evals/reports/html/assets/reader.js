// What is read below the timelines: an event, the first messages that a successor got, and what it left.
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
  const said = [`${count(prompt)} prompt`, cached === null ? "" : `${count(cached)} cached`, `${count(completion)} completion`].filter(Boolean).join(", ");
  return `${said}${estimated ? " (estimated)" : ""}`;
};

const eventPanel = (lane, place, strings) => {
  const event = lane.events?.[place];
  if (!event) return [make("p", { class: "note" }, lane.missing ?? "Choose an event above.")];
  const named = Object.entries(event.arguments ?? {});
  return [
    make("h3", {}, `e${event.n} `, make("span", { class: "what" }, isAction(event) ? `action · ${event.tool}` : `observation · ${event.tool}`)),
    facts([
      ["rediscovery", event.kind && event.kind !== "verification" ? KINDS[event.kind] : null],
      ["class", event.kind === "verification" ? "verification, no debt" : null],
      ["exit code", event.exit_code],
      ["refused", event.refused ? "nothing was done" : null],
      ["timed out", event.timed_out ? "yes" : null],
      ["validation", event.validation ? event.validation.map(words).join(" ") : null],
      ["source edited", event.edited?.join(", ")],
      ["files changed", event.changes?.join(", ")],
      ["handoff point", event.points?.map(words).join(", ")],
      ["tokens", usageOf(event)],
      ["seconds", event.seconds >= 0.05 ? seconds(event.seconds) : null],
    ]),
    pre(strings[event.text], "text"),
    Array.isArray(strings[event.text]) ? make("p", { class: "note" }, "The whole text: ", make("code", {}, lane.whole), `, event ${event.n}.`) : null,
    ...named.flatMap(([name, text]) => [make("h4", {}, name), pre(strings[text])]),
  ];
};

const WHO = { human: "to the agent", ai: "the predecessor's words", tool: "a tool's result", system: "system" };
const messagesPanel = (lane, strings) => {
  if (!lane.view) return [make("p", { class: "note" }, lane.unseen)];
  const size = lane.row.first_prompt_chars;
  const found = [make("p", { class: "note" }, `The ${lane.row.view} view${size ? `: ${plural(size, "character")}, about ${plural(lane.row.first_prompt_tokens, "token")}` : ""}.`)];
  for (const message of lane.view) {
    if (message.left) found.push(make("p", { class: "cut" }, `… ${message.left} …`));
    else
      found.push(
        make(
          "section",
          { class: `message from-${message.from}` },
          make("h4", {}, WHO[message.from] ?? message.from),
          ...message.parts.map((part) => (typeof part === "string" ? make("p", { class: "cut" }, `… ${part} …`) : pre(strings[part]))),
        ),
      );
  }
  return found;
};

const tabsOf = (lane, place, strings) => {
  const tabs = [["event", "Event", () => eventPanel(lane, place, strings)]];
  if (lane.key) {
    tabs.push(["messages", "First messages", () => messagesPanel(lane, strings)]);
    tabs.push(["diff", "Final diff", () => [diff(strings[lane.patch], "It left no difference.")]]);
  } else {
    tabs.push(["task", "Task", () => [lane.task === undefined ? make("p", { class: "note" }, lane.unseen) : pre(strings[lane.task])]]);
    tabs.push(["diff", "Diff at the point", () => [lane.task === undefined ? make("p", { class: "note" }, lane.unseen) : diff(strings[lane.patch], "Nothing was changed yet.")]]);
  }
  return tabs;
};

const reader = (strings, leave) => {
  const title = make("h2", { id: "reader-title" });
  const list = make("div", { role: "tablist", class: "tabs", "aria-labelledby": "reader-title" });
  const panel = make("div", { role: "tabpanel", id: "reader-panel", class: "panel", tabindex: 0, "aria-labelledby": "reader-tab" });
  const box = make("section", { class: "reader", "aria-label": "What was chosen" }, make("div", { class: "reader-head" }, title, list), panel);
  let open = "event";
  let shownNow = [null, null];
  const draw = () => {
    const [lane, place] = shownNow;
    const tabs = tabsOf(lane, place, strings);
    const now = tabs.find(([name]) => name === open) ?? tabs[0];
    title.replaceChildren(lane.title, " ", make("small", {}, lane.said));
    list.replaceChildren(
      ...tabs.map(([name, said]) =>
        make(
          "button",
          { type: "button", role: "tab", "data-tab": name, id: name === now[0] ? "reader-tab" : null, "aria-selected": String(name === now[0]), "aria-controls": "reader-panel", tabindex: name === now[0] ? 0 : -1, onclick: () => show(lane, place, name) },
          said,
        ),
      ),
    );
    panel.replaceChildren(...now[2]().filter(Boolean));
    panel.scrollTop = 0;
  };
  const show = (lane, place, name = null) => {
    open = name ?? open;
    shownNow = [lane, place];
    draw();
  };
  list.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const buttons = [...list.children];
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    const name = next.dataset.tab;
    show(...shownNow, name);
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
