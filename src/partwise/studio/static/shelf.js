import { $, address, announce, api, duration, el, format, number, row, showError } from "./page.js";

let entries = [];
const COMPARE = {
  modified: (a, b) => b.modified - a.modified,
  name: (a, b) => a.name.localeCompare(b.name),
  state: (a, b) => a.state.localeCompare(b.state),
  loss: (a, b) => (a.loss ?? Infinity) - (b.loss ?? Infinity),
  verdict: (a, b) => (b.verdict !== "") - (a.verdict !== "") || a.verdict.localeCompare(b.verdict),
};
const SHOWN = 300;

function link(entry) {
  if (entry.kind === "run" && !entry.name.includes("/")) return el("a", { href: address("run", entry.name) }, entry.name);
  if (entry.kind !== "comparison" || entry.name.includes("/")) return entry.name;
  return el("a", { href: address(entry.state === "finished" ? "read" : "watch", entry.name) }, entry.name);
}

function show() {
  const text = $("filter").value.toLowerCase();
  const found = entries.filter((entry) => JSON.stringify(Object.values(entry)).toLowerCase().includes(text)).sort(COMPARE[$("sort").value]);
  const now = Date.now() / 1000;
  $("runs").tBodies[0].replaceChildren(...found.slice(0, SHOWN).map((entry) => row(link(entry), entry.what, entry.state, number(format(entry.loss)), entry.verdict, number(duration(now - entry.modified)))));
  $("count").textContent = `${found.length} of ${entries.length} runs and comparisons${found.length > SHOWN ? `; the first ${SHOWN} are shown` : ""}`;
}

const said = (record) => {
  if (record.kind === "prediction") return `${format(record.low)} to ${format(record.high)}`;
  if (record.kind === "predicted result") return `${format(record.value)}, ${record.inside ? "inside" : "outside"}`;
  if (record.kind === "look") return record.planned === false ? `revealed after ${record.seeds} pairs` : `planned, at ${record.seeds} seeds`;
  return record.question ?? "";
};

try {
  const { runs, ledger } = await api("shelf");
  entries = runs;
  show();
  announce($("count").textContent);
  $("ledger").tBodies[0].replaceChildren(...ledger.reverse().slice(0, SHOWN).map((record) => row(number(record.number), record.time.replace("T", " ").slice(0, 16), record.kind, record.name ?? "", said(record))));
} catch (error) {
  $("count").textContent = "";
  showError(error);
}
$("find").addEventListener("input", show);
$("find").addEventListener("submit", (event) => event.preventDefault());
