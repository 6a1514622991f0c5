import { $, announce, api, comparison, el, enableCopy, format, row, showError, writeCommand } from "./page.js";

const path = `lessons/${encodeURIComponent(comparison)}`;
const STATES = { new: "", running: "Running", stopped: "Stopped; all runs are saved", failed: "Failed", finished: "All runs have ended" };
let last;
let checking = false;

/** A paragraph, in which words between backticks are code. */
const paragraph = (text) => el("p", {}, ...text.split("`").map((piece, index) => (index % 2 ? el("code", {}, piece) : piece)));
const block = ({ kind, text }) => (kind === "code" ? el("pre", { tabindex: "0", "aria-label": "Code" }, text) : paragraph(text));
const section = ({ title, blocks }) => el("section", {}, el("h2", {}, title), ...blocks.map(block));

function fill(table, [columns, ...rows]) {
  table.replaceChildren(el("thead", {}, el("tr", {}, ...columns.map((each) => el("th", { scope: "col" }, each)))), el("tbody", {}, ...rows.map((cells) => row(...cells))));
  return table;
}

/** The figure of the problem or of the answer, also as a table. */
const figure = (of, { picture, table }) => el("figure", {}, el("img", { src: picture, alt: `The figure of ${of}; the table below it has its values` }), el("details", {}, el("summary", {}, "The figure as a table"), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `The figure of ${of} as a table` }, fill(el("table"), table))));

function show(state) {
  writeCommand("command", state.command);
  $("prediction").hidden = state.state !== "new" || state.prediction !== null;
  $("predicted").hidden = !state.prediction;
  if (state.prediction) $("predicted").textContent = `In the ledger: ${format(state.prediction.low)} to ${format(state.prediction.high)}.`;
  $("status").textContent = STATES[state.state] + (state.state === "running" || state.state === "stopped" ? `: ${state.ended} of ${state.trials} runs ended` : "");
  $("progress").hidden = state.state !== "running";
  $("progress").max = state.trials;
  $("progress").value = state.ended;
  $("interrupt").hidden = state.state !== "running";
  $("resume").hidden = !["stopped", "failed"].includes(state.state) && !(state.state === "new" && state.prediction);
  $("show").hidden = state.state !== "finished" || !$("answer").hidden;
  showError(state.error ? new Error(state.error) : undefined);
  if (last !== undefined && last !== state.state) announce($("status").textContent);
  if (state.state === "running") setTimeout(refresh, 2000);
  last = state.state;
}

async function refresh() {
  try {
    show(await api(`${path}/state`));
  } catch (error) {
    showError(error);
    if (last === "running") setTimeout(refresh, 2000);
  }
}

async function act(action, body = {}) {
  try {
    show(await api(`${path}/${action}`, body));
  } catch (error) {
    showError(error);
  }
}

async function showAnswer() {
  $("show").disabled = true;
  $("status").textContent = "Reading the runs …";
  try {
    const answer = await api(`${path}/answer`, {});
    const lesson = await api(path);
    const [, , , , after, exercise] = lesson.sections;
    $("after").replaceChildren(figure("the answer", lesson.answer_figure), ...after.blocks.map(block), section(exercise));
    $("exercise").hidden = lesson.unchecked !== "";
    $("said").textContent = lesson.unchecked;
    const { prediction, value, inside } = answer;
    const yours = value === null ? "A run has failed, so there is no value" : `${answer.asked}: ${format(value)} ${answer.unit}`;
    $("outcome").textContent = prediction && value !== null ? `${yours}, ${inside ? "inside" : "outside"} your range ${format(prediction.low)} to ${format(prediction.high)}.` : `${yours}.`;
    fill($("values"), answer.table);
    $("verdicts").replaceChildren(...[...answer.verdicts, ...answer.claims].map((line) => el("p", { class: "quiet" }, line)));
    $("answer").hidden = false;
    $("show").hidden = true;
    $("status").textContent = STATES.finished;
    announce($("outcome").textContent);
  } catch (error) {
    showError(error);
  }
  $("show").disabled = false;
}

const nameCheck = () => writeCommand("check-command", `partwise lesson ${comparison} --check "ANSWER"`);

async function check(event) {
  event.preventDefault();
  if (checking) return;
  checking = true; // the button keeps the focus, which it would lose if it were disabled
  $("said").textContent = "Checking …";
  try {
    const { said, command } = await api(`${path}/check`, { answer: $("reply").value.trim() });
    writeCommand("check-command", command);
    $("said").textContent = said;
  } catch (error) {
    $("said").textContent = error.message;
  }
  checking = false;
}

enableCopy();
nameCheck();
try {
  const lesson = await api(path);
  $("asked").textContent = lesson.question;
  $("head").textContent = `Lesson ${lesson.number}, about ${format(lesson.minutes)} minutes.${lesson.needs.length ? ` It builds on ${lesson.needs.length > 1 ? "lessons" : "lesson"} ${lesson.needs.join(", ")}.` : ""}`;
  document.querySelector("h1").textContent = lesson.title;
  const [problem, idea, prediction, run] = lesson.sections;
  $("before").replaceChildren(section(problem), ...(lesson.figure ? [figure("the problem", lesson.figure)] : []));
  $("idea").replaceChildren(section(idea));
  $("prediction-text").replaceChildren(...prediction.blocks.map(block));
  $("run-text").replaceChildren(...run.blocks.map(block));
  $("quantity").textContent = `${lesson.asked} (${lesson.unit}), from low to high:`;
  show(lesson);
} catch (error) {
  showError(error);
}
$("prediction").addEventListener("submit", (event) => {
  event.preventDefault();
  act("start", { prediction: { low: Number($("low").value), high: Number($("high").value) } });
});
for (const id of ["low", "high"]) {
  $(id).addEventListener("input", () => {
    const range = $("low").value !== "" && $("high").value !== "" ? ` --predict=${Number($("low").value)},${Number($("high").value)}` : "";
    writeCommand("command", `partwise lesson ${comparison}${range}`);
  });
}
$("interrupt").addEventListener("click", () => act("interrupt"));
$("resume").addEventListener("click", () => act("start"));
$("show").addEventListener("click", showAnswer);
$("exercise").addEventListener("submit", check);
$("reply").addEventListener("input", () => {
  $("said").textContent = "";
  nameCheck();
});
