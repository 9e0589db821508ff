// The page works without this script, but for actions, keys and the live refresh.
"use strict";

const base = document.body.dataset.base;
const main = document.getElementById("main");
const ask = document.getElementById("ask");
const help = document.getElementById("help");
const live = document.getElementById("live");
const told = document.getElementById("told");
const byId = (id) => document.getElementById(id);

// ---- what happened, in words ----

let forget;
let undo = null; // the request that takes the last change back

function tell(said) {
  told.textContent = said.message;
  undo = said.undo ?? null;
  byId("undo").hidden = !undo;
  clearTimeout(forget);
  forget = setTimeout(() => tell({ message: "" }), undo ? 60000 : 6000);
}

// ---- rows and the selected one ----

const rows = () => [...main.querySelectorAll("[data-row]")];
const nameOf = (row) => row.querySelector("[data-open]")?.getAttribute("href") ?? "";
let selected = null; // the address that the selected row opens

function selectedRow() {
  const all = rows();
  if (all.length === 1) return all[0];
  return all.find((row) => row.hasAttribute("data-whole"))
    ?? all.find((row) => nameOf(row) === selected);
}

function select(row, focus) {
  for (const other of rows()) other.classList.toggle("selected", other === row);
  if (!row) return;
  selected = nameOf(row);
  if (focus) {
    row.querySelector("[data-open]")?.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }
}

function move(step) {
  const all = rows().filter((row) => row.querySelector("[data-open]"));
  if (!all.length) return;
  const at = all.findIndex((row) => nameOf(row) === selected);
  const next = at < 0 ? 0 : Math.min(Math.max(at + step, 0), all.length - 1);
  select(all[next], true);
}

main.addEventListener("focusin", (event) => {
  const row = event.target.closest("[data-row]");
  if (row && row.querySelector("[data-open]")) select(row, false);
});

// ---- what each row says in short ----

function makeButton(lane, labels, action, of) {
  const [label, key, grave] = labels[action];
  const button = document.createElement("button");
  button.type = "button";
  button.className = grave ? "act grave" : "act";
  button.textContent = label;
  button.dataset.action = JSON.stringify({ action, ...(of ?? JSON.parse(lane.dataset.of)) });
  button.dataset.about = lane.querySelector("[data-open]").textContent;
  if (key) button.dataset.key = key;
  return button;
}

function fill(within) {
  for (const list of within.querySelectorAll("[data-labels]")) {
    const labels = JSON.parse(list.dataset.labels);
    for (const acts of list.querySelectorAll("[data-acts]")) {
      const make = ([action, of]) => makeButton(acts.closest("[data-row]"), labels, action, of);
      acts.append(...JSON.parse(acts.dataset.acts).map(make));
    }
  }
  for (const button of within.querySelectorAll("[data-key]")) button.ariaKeyShortcuts = button.dataset.key;
  for (const time of within.querySelectorAll("time")) time.title = time.dateTime;
}
fill(main);

// ---- the live refresh ----

let wanted = false;
let refreshing = false;
let refreshedAt = Date.now();

let seenAt = new Date(); // when the page was read that is shown
let away = false; // it cannot be read anew now
let heardAt = Date.now(); // when the server last said anything: it does so every 5 s

// A page that costs the database more is read less often: it takes 0.4 % of the time.
const atLeast = () => away ? 2000 : Math.min(Math.max(2000, 250 * Number(main.dataset.took)), 60000);
const editing = () => main.querySelector("input:not([type=checkbox]):focus, select:focus") !== null;

function focusMark() {
  const at = document.activeElement;
  if (!main.contains(at) || at === main) return null;
  const row = at.closest("[data-row]");
  return { row: row && nameOf(row), href: at.getAttribute("href"), action: at.dataset.action,
    value: at.value, id: at.id };
}

function restoreFocus(mark) {
  if (!mark) return;
  const row = rows().find((row) => nameOf(row) === mark.row) ?? main;
  const same = [...row.querySelectorAll("a, button, input, summary")].find((other) =>
    other.getAttribute("href") === mark.href && other.dataset.action === mark.action
    && other.value === mark.value && other.id === mark.id);
  (same ?? row.querySelector?.("[data-open]"))?.focus({ preventScroll: true });
}

const fields = () => [...main.querySelectorAll("[data-fields] input, [data-fields] select")];

// Leaves the page as it was, and says so, until it can be read again.
function tellAway(why) {
  away = why !== "";
  if (away) wanted = true;
  const at = `${seenAt.toISOString().slice(11, 19)} UTC`;
  const note = away ? `${why} The page below is of ${at}. It comes back by itself.` : "";
  byId("as-of").textContent = `as of ${at}`;
  if (byId("away").textContent !== note) byId("away").textContent = note;
  byId("away").hidden = !away;
  live.classList.toggle("offline", away);
}

async function refresh() {
  if (refreshing) { wanted = true; return; }
  refreshing = true;
  wanted = false;
  try {
    const answer = await fetch(location.href,
      { headers: { accept: "text/html" }, signal: AbortSignal.timeout(15000) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("main");
    if (!fresh || answer.status >= 500) {
      tellAway(fresh?.querySelector("p")?.textContent ?? `The server answered ${answer.status}.`);
      return;
    }
    heardAt = Date.now();
    tellAway("");
    if (editing() || ask.open) { wanted = true; return; }
    const mark = focusMark();
    const whole = rows().filter((row) => row.querySelector(".why.whole")).map(nameOf);
    const were = picked().map((box) => box.value);
    const typed = fields().map((field) => field.value);
    const open = [...main.querySelectorAll("details[open]")].map((details) => details.id);
    const aside = main.querySelector(".picture")?.scrollLeft;
    fill(fresh);
    main.replaceChildren(...fresh.childNodes);
    seenAt = new Date();
    tellAway("");
    if (fresh.dataset.took) main.dataset.took = fresh.dataset.took;
    for (const row of rows()) {
      if (whole.includes(nameOf(row))) row.querySelector(".why")?.classList.add("whole");
    }
    for (const box of main.querySelectorAll("input[name=pick]")) box.checked = were.includes(box.value);
    for (const details of main.querySelectorAll("details")) details.open = open.includes(details.id);
    fields().forEach((field, n) => { field.value = typed[n] ?? field.value; });
    const again = rows().find((row) => selected && nameOf(row) === selected);
    if (again) select(again, false);
    if (aside) main.querySelector(".picture")?.scrollTo(aside, 0);
    restoreFocus(mark);
    main.dispatchEvent(new CustomEvent("refreshed"));
  } catch {
    tellAway("The server of this page does not answer.");
  } finally {
    refreshing = false;
    refreshedAt = Date.now();
  }
}

// A job that reports its progress moves without an event: nothing of the queues changes.
const moves = () => main.querySelector("[data-moves]") !== null;

setInterval(() => {
  const due = Date.now() - refreshedAt >= atLeast();
  const on = live.getAttribute("aria-pressed") === "true";
  // Its process may be frozen: then nothing ends the stream.
  if (on && !away && !document.hidden && Date.now() - heardAt > 15000) {
    tellAway("The server of this page has said nothing for 15 s.");
    listen();
  }
  if ((wanted || moves()) && on && due && !document.hidden && !ask.open && !editing()) refresh();
}, 250);

let source = null;
function listen() {
  source?.close();
  source = new EventSource(base + "events");
  heardAt = Date.now();
  const on = (event, then) => source.addEventListener(event, () => { heardAt = Date.now(); then(); });
  on("changed", () => { wanted = true; });
  on("away", () => { tellAway("The database does not answer."); });
  on("beat", () => {});
  on("open", () => { if (away) wanted = true; else live.classList.remove("offline"); });
  source.addEventListener("error", () => {
    live.classList.add("offline");
    // A browser does not open a stream again that was answered with an error.
    if (source.readyState === EventSource.CLOSED) setTimeout(listenIfSeen, 2000);
  });
}

function toggleLive() {
  const on = live.getAttribute("aria-pressed") !== "true";
  live.setAttribute("aria-pressed", String(on));
  live.textContent = on ? "Live" : "Paused";
  sessionStorage.setItem("seriatim-live", on ? "on" : "off");
  if (on) { listen(); wanted = true; } else { source?.close(); tellAway(""); }
}

// A browser has six connections for a server: a page that nobody sees must not keep one of them.
function listenIfSeen() {
  const on = live.getAttribute("aria-pressed") === "true";
  if (document.hidden || !on) { source?.close(); return; }
  wanted = true;
  listen();
}

live.addEventListener("click", toggleLive);
document.addEventListener("visibilitychange", listenIfSeen);
addEventListener("pagehide", () => source?.close());
addEventListener("pageshow", (event) => { if (event.persisted) listenIfSeen(); });
tellAway("");
if (sessionStorage.getItem("seriatim-live") === "off") toggleLive(); else if (!document.hidden) listen();

// ---- actions ----

let asked = null;

// ---- picked rows ----

const picked = () => [...main.querySelectorAll("input[name=pick]:checked")];

function pick() {
  const box = selectedRow()?.querySelector("input[name=pick]");
  if (box) box.checked = !box.checked;
}

main.addEventListener("change", (event) => {
  if (event.target.id !== "pick-all") return;
  for (const box of main.querySelectorAll("input[name=pick]")) box.checked = event.target.checked;
});

// The picked rows, or else the selected one.
function jobsToPick() {
  const boxes = picked();
  const own = selectedRow()?.querySelector("input[name=pick]");
  return (boxes.length ? boxes : own ? [own] : []).map((box) => Number(box.value));
}

// ---- what an action asks and does ----

async function send(body, more) {
  const answer = await fetch(`${base}api/v1/actions`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-seriatim": "1" },
    body: JSON.stringify({ ...body, ...more }),
  });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(said.error ?? `The server answered ${answer.status}.`);
  return said;
}

// A change of many jobs comes in parts. Each answer has the sum so far, and where the next begins.
async function sendAll(action, reason) {
  for (let more = { reason }; ; ) {
    const said = await send(action.body, more);
    if (said.next === undefined) return said;
    byId("ask-preview").textContent = said.message;
    const { jobs = 0, overtaken = 0, moved_back = 0 } = said;
    more = {
      reason,
      matching: { ...action.body.matching, after: said.next },
      so_far: { jobs, overtaken, moved_back },
    };
  }
}

async function askFor(action) {
  asked = action;
  byId("ask-title").textContent = action.label;
  byId("ask-about").textContent = action.about;
  byId("ask-yes").textContent = action.label;
  byId("ask-yes").disabled = true;
  byId("ask-reason").value = action.body.reason ?? "";
  const preview = byId("ask-preview");
  preview.classList.remove("refused");
  preview.textContent = "Looking up what it would do …";
  ask.showModal();
  byId("ask-reason").focus();
  try {
    preview.textContent = (await send(action.body, { dry_run: true })).message;
    byId("ask-yes").disabled = false;
  } catch (error) {
    preview.classList.add("refused");
    preview.textContent = error.message;
  }
}

function press(button) {
  const body = JSON.parse(button.dataset.action);
  let about = button.dataset.about;
  if ("picks" in button.dataset) {
    body.ids = jobsToPick();
    about = body.ids.length ? `Jobs ${body.ids.join(", ")}` : "No row is picked.";
  }
  // A field that cannot be read must not pass for an empty one.
  for (const field of button.closest("[data-fields]")?.querySelectorAll("input, select") ?? []) {
    if (!field.reportValidity()) return;
    if (field.value) body[field.name] = field.type === "number" ? Number(field.value) : field.value;
  }
  const label = button.firstChild.textContent.trim();
  askFor({ label, about, body });
}

function takeBack() {
  if (undo) askFor({ about: told.textContent, ...undo });
}
byId("undo").addEventListener("click", takeBack);

byId("ask-no").addEventListener("click", () => ask.close());
ask.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const reason = byId("ask-reason").value.trim();
  if (!asked || !reason || byId("ask-yes").disabled) return;
  byId("ask-yes").disabled = true;
  try {
    tell(await sendAll(asked, reason));
    ask.close();
    await refresh();
  } catch (error) {
    const preview = byId("ask-preview");
    preview.classList.add("refused");
    preview.textContent = error.message;
    byId("ask-yes").disabled = false;
  }
});
ask.addEventListener("close", () => { asked = null; wanted = true; });

main.addEventListener("click", (event) => {
  const button = event.target.closest("button.act");
  const row = event.target.closest("[data-row]");
  if (button) press(button);
  else if (row?.querySelector("[data-open]")) select(row, false);
});

// ---- keys ----


document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ask.open || help.open) return;
  if (event.target.closest("input:not([type=checkbox]), select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const key = event.key;
  if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
  else if (key === "/") byId("find").focus();
  else if (key === "?") help.showModal();
  else if (key === "l") toggleLive();
  else if (key === "v") pick();
  else if (key === "u") takeBack();
  else if (key === "e") selectedRow()?.querySelector(".why")?.classList.toggle("whole");
  else if (key === "Enter" && event.target === document.body) {
    const row = selectedRow();
    if (row && nameOf(row)) location.assign(nameOf(row));
    return;
  } else {
    const act = `button.act[data-key="${key}"]`;
    const button = /^[a-z]$/.test(key)
      && (selectedRow()?.querySelector(act) ?? main.querySelector(`[data-bulk] ${act}`));
    if (!button) return;
    press(button);
  }
  event.preventDefault();
});
byId("keys").addEventListener("click", () => help.showModal());

const here = location.pathname.split("/").pop();
for (const link of document.querySelectorAll("nav a:not(.mark)")) {
  if (new URL(link.href).pathname.split("/").pop() === here) link.setAttribute("aria-current", "page");
}
