import { $, address, announce, api, comparison, duration, format, number, row, showError } from "./page.js";

const LABELS = { preparing: "Preparing the data", running: "Running", stopped: "Stopped; all runs are saved", failed: "Failed", finished: "Finished", gone: "Gone" };
let chart;
let state;
let labelled;

function show(next) {
  const before = state;
  state = next;
  showError(state.error ? new Error(state.error) : undefined);
  if (state.state === "gone") {
    $("status").textContent = "This comparison is not here any more.";
    for (const id of ["interrupt", "resume", "look"]) $(id).hidden = true;
    return;
  }
  const { counts } = state;
  const ended = (counts.done ?? 0) + (counts.diverged ?? 0) + (counts.failed ?? 0);
  $("asked").textContent = state.question ?? "";
  $("status").textContent = `${LABELS[state.state]}: ${ended} of ${state.trials || "?"} runs ended`;
  $("progress").max = state.trials || 1;
  $("progress").value = ended;
  $("details").textContent = [
    state.now?.length ? `now: ${state.now.join(", ")}` : "",
    state.seconds_left ? `about ${duration(state.seconds_left)} left` : "",
    counts.failed || counts.diverged ? `${(counts.failed ?? 0) + (counts.diverged ?? 0)} failed` : "",
    state.prediction ? `you predicted ${format(state.prediction.low)} to ${format(state.prediction.high)}` : "",
    state.state === "stopped" && !state.resumable ? "a terminal has started it: run its command there again to resume it" : "",
    state.revealed && state.state !== "finished" ? "the ledger has a look at it" : "",
  ].filter(Boolean).join("; ");
  $("interrupt").hidden = state.state !== "running";
  $("resume").hidden = !state.resumable;
  $("look").hidden = !["running", "stopped"].includes(state.state) || Boolean(labelled);
  $("read").hidden = state.state !== "finished";
  $("read").href = address("read", comparison);
  if (before && before.state !== state.state) announce($("status").textContent);
  if (!before || before.counts.done !== counts.done) announce($("status").textContent);
  if (!labelled) draw(state.curves.map((curve) => ({ curve, color: css("--quiet") })));
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** All curves over the share of the training that is done. */
function draw(lines) {
  const places = [...new Set(lines.flatMap(({ curve }) => curve.map(([x]) => x)))].sort((a, b) => a - b);
  const data = [places.map((x) => 100 * x), ...lines.map(({ curve }) => {
    const values = new Map(curve);
    return places.map((x) => values.get(x) ?? null);
  })];
  const axis = { stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") } };
  const series = [{}, ...lines.map(({ color, label }) => ({ stroke: color, width: 1.5, spanGaps: true, points: { show: false }, label: label ?? "" }))];
  const options = { width: $("chart").clientWidth || 600, height: 280, legend: { show: false }, cursor: { show: false }, scales: { x: { time: false, range: [0, 100] } }, axes: [{ ...axis, label: "% of the steps" }, { ...axis, label: "training loss" }], series };
  chart?.destroy();
  chart = places.length ? new uPlot(options, data, $("chart")) : undefined;
}

function showLabelled(found) {
  labelled = found;
  const colors = [css("--accent"), "#d9730d", "#8250df", "#1a7f37", "#bf3989"];
  const names = Object.keys(found.arms);
  draw(names.flatMap((name, index) => Object.values(found.arms[name]).map(({ curve }) => ({ curve, color: colors[index % colors.length], label: name }))));
  $("curves-note").textContent = "The arms under their names. The ledger has this look; the verdict comes with the result.";
  $("chart").setAttribute("aria-label", "Training losses of all runs, coloured by arm");
  $("labelled").hidden = false;
  $("labelled").tBodies[0].replaceChildren(...names.map((name, index) => {
    const runs = Object.values(found.arms[name]);
    const last = runs.map(({ curve }) => curve.at(-1)?.[1]).filter((value) => value !== undefined);
    const mean = last.length ? format(last.reduce((a, b) => a + b, 0) / last.length) : "";
    const made = row(name, number(runs.filter((run) => run.status === "done").length), number(mean));
    made.firstChild.style.borderLeft = `.5rem solid ${colors[index % colors.length]}`;
    made.firstChild.style.paddingLeft = ".5rem";
    return made;
  }));
  announce("The arms are shown under their names");
}

const act = (action) => async () => {
  try {
    const answer = await api(`comparisons/${encodeURIComponent(comparison)}/${action}`, {});
    if (action === "look") showLabelled(answer);
    if (action === "resume") follow();
    announce({ look: "Revealed", interrupt: "Asked to stop", resume: "Resumed" }[action]);
  } catch (error) {
    showError(error);
  }
};

let source;
function follow() {
  source?.close();
  source = new EventSource(`${address("api", "comparisons", comparison, "events")}`);
  source.addEventListener("message", (event) => {
    show(JSON.parse(event.data));
    if (["finished", "gone"].includes(state.state)) source.close();
  });
  source.addEventListener("error", async () => {
    if (source.readyState === EventSource.CLOSED) {
      try {
        show(await api(`comparisons/${encodeURIComponent(comparison)}`));
      } catch (error) {
        showError(error);
      }
      return;
    }
    showError(new Error("The studio does not answer. Comparisons keep running; this page continues when the studio is back."));
  });
}

$("interrupt").addEventListener("click", act("interrupt"));
$("resume").addEventListener("click", act("resume"));
$("look").addEventListener("click", () => $("confirm").showModal());
$("confirm-no").addEventListener("click", () => $("confirm").close());
$("confirm-yes").addEventListener("click", () => { $("confirm").close(); act("look")(); });
addEventListener("themed", () => { if (state && !labelled) show(state); });
addEventListener("resize", () => chart?.setSize({ width: $("chart").clientWidth, height: 280 }));
follow();
