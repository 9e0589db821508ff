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
function tell(text) {
  told.textContent = text;
  clearTimeout(forget);
  forget = setTimeout(() => { told.textContent = ""; }, 6000);
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

// ---- the live refresh ----

let wanted = false;
let refreshing = false;
let refreshedAt = Date.now();

// A page that costs the database more is read less often: it takes one percent of the time.
const atLeast = () => Math.min(Math.max(2000, 100 * Number(main.dataset.took)), 30000);
const editing = () => main.querySelector("input:focus, select:focus") !== null;

function focusMark() {
  const at = document.activeElement;
  if (!main.contains(at) || at === main) return null;
  const row = at.closest("[data-row]");
  return { row: row && nameOf(row), href: at.getAttribute("href"), address: at.dataset.address,
    body: at.dataset.body };
}

function restoreFocus(mark) {
  if (!mark) return;
  const row = rows().find((row) => nameOf(row) === mark.row) ?? main;
  const same = [...row.querySelectorAll("a, button")].find((other) =>
    other.getAttribute("href") === mark.href && other.dataset.address === mark.address
    && other.dataset.body === mark.body);
  (same ?? row.querySelector?.("[data-open]"))?.focus({ preventScroll: true });
}

async function refresh() {
  if (refreshing) { wanted = true; return; }
  refreshing = true;
  wanted = false;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("main");
    if (!fresh) return;
    if (editing() || ask.open) { wanted = true; return; }
    const mark = focusMark();
    const whole = rows().filter((row) => row.querySelector(".why.whole")).map(nameOf);
    const aside = main.querySelector(".picture")?.scrollLeft;
    main.replaceChildren(...fresh.childNodes);
    if (fresh.dataset.took) main.dataset.took = fresh.dataset.took;
    for (const row of rows()) {
      if (whole.includes(nameOf(row))) row.querySelector(".why")?.classList.add("whole");
    }
    const again = rows().find((row) => selected && nameOf(row) === selected);
    if (again) select(again, false);
    if (aside) main.querySelector(".picture")?.scrollTo(aside, 0);
    restoreFocus(mark);
    main.dispatchEvent(new CustomEvent("refreshed"));
  } catch {
    wanted = true; // the server is away: the next tick tries again
  } finally {
    refreshing = false;
    refreshedAt = Date.now();
  }
}

setInterval(() => {
  const due = Date.now() - refreshedAt >= atLeast();
  const on = live.getAttribute("aria-pressed") === "true";
  if (wanted && on && due && !document.hidden && !ask.open && !editing()) refresh();
}, 250);

let source = null;
function listen() {
  source?.close();
  source = new EventSource(base + "events");
  source.addEventListener("changed", () => { wanted = true; });
  source.addEventListener("open", () => { live.classList.remove("offline"); });
  source.addEventListener("error", () => { live.classList.add("offline"); });
}

function toggleLive() {
  const on = live.getAttribute("aria-pressed") !== "true";
  live.setAttribute("aria-pressed", String(on));
  live.textContent = on ? "Live" : "Paused";
  sessionStorage.setItem("seriatim-live", on ? "on" : "off");
  if (on) { listen(); wanted = true; } else { source?.close(); }
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
if (sessionStorage.getItem("seriatim-live") === "off") toggleLive(); else if (!document.hidden) listen();

// ---- actions ----

let asked = null;

async function send(button, more) {
  const body = { ...JSON.parse(button.dataset.body), ...more };
  const answer = await fetch(base + button.dataset.address, {
    method: "POST",
    headers: { "content-type": "application/json", "x-seriatim": "1" },
    body: JSON.stringify(body),
  });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(said.error ?? `The server answered ${answer.status}.`);
  return said.message;
}

async function askFor(button) {
  asked = button;
  const label = button.firstChild.textContent.trim();
  byId("ask-title").textContent = label;
  byId("ask-about").textContent = button.dataset.about;
  byId("ask-yes").textContent = label;
  byId("ask-yes").disabled = true;
  byId("ask-reason").value = "";
  const preview = byId("ask-preview");
  preview.classList.remove("refused");
  preview.textContent = "What it would do is being looked up.";
  ask.showModal();
  byId("ask-reason").focus();
  try {
    preview.textContent = await send(button, { dry_run: true });
    byId("ask-yes").disabled = false;
  } catch (error) {
    preview.classList.add("refused");
    preview.textContent = error.message;
  }
}

byId("ask-no").addEventListener("click", () => ask.close());
ask.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const reason = byId("ask-reason").value.trim();
  if (!asked || !reason || byId("ask-yes").disabled) return;
  byId("ask-yes").disabled = true;
  try {
    tell(await send(asked, { reason }));
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
  if (button) askFor(button);
});

// ---- keys ----

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ask.open || help.open) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const key = event.key;
  if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
  else if (key === "/") byId("find").focus();
  else if (key === "?") help.showModal();
  else if (key === "l") toggleLive();
  else if (key === "e") selectedRow()?.querySelector(".why")?.classList.toggle("whole");
  else if (key === "Enter" && event.target === document.body) {
    const row = selectedRow();
    if (row && nameOf(row)) location.assign(nameOf(row));
    return;
  } else {
    const button = /^[a-z]$/.test(key)
      && selectedRow()?.querySelector(`button.act[data-key="${key}"]`);
    if (!button) return;
    askFor(button);
  }
  event.preventDefault();
});
byId("keys").addEventListener("click", () => help.showModal());

const here = location.pathname.split("/").pop();
for (const link of document.querySelectorAll("nav a:not(.mark)")) {
  if (new URL(link.href).pathname.split("/").pop() === here) link.setAttribute("aria-current", "page");
}
