import { $, address, announce, api, duration, el, format, number, row, showError } from "./page.js";

let entries = [];
let ledger = [];
const COMPARE = {
  modified: (a, b) => b.modified - a.modified,
  name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
  state: (a, b) => a.state.localeCompare(b.state),
  loss: (a, b) => (a.loss ?? Infinity) - (b.loss ?? Infinity),
  verdict: (a, b) => (b.verdict !== "") - (a.verdict !== "") || a.verdict.localeCompare(b.verdict),
};
const MORE = 100;
const shown = { runs: MORE, ledger: MORE };

function link({ kind, name, state }) {
  const screen = kind === "comparison" ? (state === "finished" ? "read" : "watch") : kind;
  return name.includes("/") ? name : el("a", { href: address(screen, name) }, name);
}

/** Rows of a table, and a button for those that it does not show yet; a new row gets the focus that the button had. */
function fill(table, rows, make) {
  const body = $(table).tBodies[0];
  const before = body.rows.length;
  body.replaceChildren(...rows.slice(0, shown[table]).map(make));
  const more = $(`more-${table}`);
  const focused = document.activeElement === more;
  more.hidden = rows.length <= shown[table];
  more.textContent = `Show ${Math.min(MORE, rows.length - shown[table])} more`;
  if (focused && body.rows[before]) (body.rows[before].querySelector("a") ?? body.closest(".scroll")).focus();
}

function show() {
  const text = $("filter").value.toLowerCase();
  const found = entries.filter((entry) => entry.text.includes(text)).sort(COMPARE[$("sort").value]);
  const now = Date.now() / 1000;
  fill("runs", found, (entry) => row(link(entry), entry.what, entry.state, number(format(entry.loss)), entry.verdict, number(duration(now - entry.modified))));
  const first = found.length > shown.runs ? `, of which ${shown.runs} are shown` : "";
  $("count").textContent = `${found.length} of ${entries.length} runs, comparisons and searches${first}`;
}

const said = (record) => {
  if (record.kind === "prediction") return `${format(record.low)} to ${format(record.high)}`;
  if (record.kind === "predicted result") return `${format(record.value)}, ${record.inside ? "inside" : "outside"}`;
  if (record.kind === "look") return record.planned === false ? `revealed after ${record.seeds} pairs` : `planned, at ${record.seeds} seeds`;
  return record.question ?? "";
};
const showLedger = () => fill("ledger", ledger, (record) => row(number(record.number), record.time.replace("T", " ").slice(0, 16), record.kind, record.name ?? "", said(record)));

try {
  const found = await api("shelf");
  entries = found.runs.map((entry) => ({ ...entry, text: JSON.stringify(Object.values(entry)).toLowerCase() }));
  ledger = found.ledger.reverse();
  show();
  showLedger();
  announce($("count").textContent);
} catch (error) {
  $("count").textContent = "";
  showError(error);
}
$("find").addEventListener("input", () => { shown.runs = MORE; show(); });
$("find").addEventListener("submit", (event) => event.preventDefault());
for (const [table, again] of [["runs", show], ["ledger", showLedger]]) {
  $(`more-${table}`).addEventListener("click", () => { shown[table] += MORE; again(); });
}
