import { $, address, announce, api, duration, el, enableCopy, format, number, prefix, questionOfAddress, row, showError, writeCommand } from "./page.js";

const FIRST = { change: ["ffn=swiglu"], preset: "mingpt", data: "shakespeare", size: "small", seeds: 5, margin: 0.02 };
let families = [];
let latest;
let timer;

const words = (id) => $(id).value.split(/\s+/).filter(Boolean);
const integer = (id) => ($(id).value === "" ? null : Number($(id).value));

/** The question as the fields have it. */
function question() {
  const asked = { preset: $("preset").value, change: [$("change").value, ...words("options")], data: $("data").value, size: $("size").value };
  asked.margin = Number($("margin").value);
  const looks = words("looks").flatMap((word) => word.split(",")).filter(Boolean).map(Number);
  if (looks.length) asked.looks = looks;
  else asked.seeds = integer("seeds");
  if (Number($("first_seed").value)) asked.first_seed = integer("first_seed");
  if ($("steps").value) asked.steps = integer("steps");
  if (words("common").length) asked.common = words("common");
  if ($("name").value) asked.name = $("name").value;
  return asked;
}

function fill(choices) {
  families = choices.families;
  $("change").replaceChildren(...families.map((family) => el("optgroup", { label: family.name }, ...family.parts.map((part) => el("option", { value: part.name, title: part.about }, part.name)))));
  $("preset").replaceChildren(...choices.presets.map((each) => el("option", { value: each.name, title: each.about }, each.name)));
  $("data").replaceChildren(...choices.data.map((each) => el("option", { value: each }, each)));
  $("experiments").hidden = !choices.experiments.length;
  $("experiment").replaceChildren(...choices.experiments.map((each) => el("option", { value: each }, each)));
  const first = { ...FIRST, ...(choices.data.length > 3 ? { data: choices.data[3] } : {}), ...(questionOfAddress() ?? {}) };
  $("change").value = first.change[0];
  $("options").value = first.change.slice(1).join(" ");
  for (const key of ["preset", "data", "size", "margin"]) $(key).value = first[key];
  for (const key of ["seeds", "first_seed", "steps", "name"]) $(key).value = first[key] ?? $(key).value;
  for (const key of ["looks", "common"]) $(key).value = (first[key] ?? []).join(" ");
}

/** Asks the studio what the question means, and shows it or why it cannot be built. */
async function check() {
  latest?.abort();
  latest = new AbortController();
  const asked = question();
  $("next").disabled = true;
  history.replaceState(null, "", `?q=${encodeURIComponent(JSON.stringify(asked))}`);
  try {
    show(await api("question", asked, latest.signal));
    showError();
    $("next").disabled = false;
  } catch (error) {
    if (error.name === "AbortError") return;
    showError(error);
    $("asked").textContent = "";
    writeCommand("command", "");
    $("arms").tBodies[0].replaceChildren();
  }
}

function show(said) {
  $("asked").textContent = [said.question, ...said.notes].join(" ");
  writeCommand("command", said.command);
  const rows = Object.entries(said.part.rows).filter(([label]) => !["try", "file", "settings"].includes(label));
  $("part").replaceChildren(
    el("p", {}, el("strong", {}, said.part.title), said.part.why ? `: ${said.part.why}` : ""),
    el("dl", {}, ...rows.flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, label === "lesson" ? el("a", { href: address("lesson", parseInt(text)) }, text) : text)])),
  );
  const [base] = said.arms;
  $("arms").tBodies[0].replaceChildren(
    ...said.arms.map((arm) => row(arm.name, number(counted(arm.parameters, base.parameters)), number(counted(arm.flops_per_token, base.flops_per_token)))),
  );
  announce(said.question);
}

function counted(value, base) {
  const change = base ? (100 * (value - base)) / base : 0;
  return value.toLocaleString("en") + (Math.abs(change) < 0.05 ? "" : ` (${change > 0 ? "+" : "−"}${Math.abs(change).toFixed(1)}%)`);
}

async function estimate() {
  $("estimate-button").disabled = true;
  $("estimate").replaceChildren(el("p", { class: "quiet" }, "Timing a few steps of both arms …"));
  try {
    const plan = await api("estimate", question());
    const table = el("table", {}, el("caption", {}, "What each number of seeds could show"), el("thead", {}, el("tr", {}, ...["Seeds", "Time, at most", "Detectable difference"].map((each) => el("th", { scope: "col" }, each)))));
    table.append(el("tbody", {}, ...plan.designs.map((each) => row(number(each.seeds), number(each.seconds === null ? "" : duration(each.seconds)), number(format(each.minimum_detectable_effect, 2))))));
    $("estimate").replaceChildren(table, el("p", { class: "quiet" }, `${plan.noise} A detectable difference is found in 4 of 5 comparisons.`));
  } catch (error) {
    $("estimate").replaceChildren(el("p", { class: "error" }, error.message));
  }
  $("estimate-button").disabled = false;
}

enableCopy();
$("question").addEventListener("input", () => {
  clearTimeout(timer);
  $("next").disabled = true;
  $("estimate").replaceChildren();
  timer = setTimeout(check, 250);
});
$("change").addEventListener("input", () => { $("options").value = ""; });
$("ask-experiment").addEventListener("click", () => {
  location.href = `${prefix}/predict?q=${encodeURIComponent(JSON.stringify({ experiment: $("experiment").value }))}`;
});
$("estimate-button").addEventListener("click", estimate);
$("question").addEventListener("submit", (event) => {
  event.preventDefault();
  location.href = `${prefix}/predict?q=${encodeURIComponent(JSON.stringify(question()))}`;
});
try {  // after the listeners: what is clicked meanwhile counts
  fill(await api("choices"));
  await check();
} catch (error) {
  showError(error);
}
