import { $, address, announce, api, el, enableCopy, format, number, row, run, showError, writeCommand } from "./page.js";
import { follow } from "./events.js";

enableCopy();

function showReport(exists) {
  $("report").hidden = !exists;
  if (exists) $("report").src = `${address("pages", run, "report.html")}?${Date.now()}`;
  $("draw").textContent = exists ? "Draw it again" : "Draw it";
}

function show(facts) {
  $("state").textContent = `${facts.state[0].toUpperCase()}${facts.state.slice(1)}: step ${format(facts.step, 9)} of ${format(facts.steps, 9)}${facts.checkpoint === null || facts.checkpoint === facts.step ? "" : `, saved at step ${format(facts.checkpoint, 9)}`}`;
  $("settings").replaceChildren(...facts.settings.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]));
  const rows = [["Best", facts.best], ["Last", facts.last]].filter(([, each]) => each);
  $("losses").hidden = !rows.length;
  $("losses").tBodies[0].replaceChildren(...rows.map(([name, each]) => row(name, number(format(each.step, 9)), number(format(each.validation)), number(format(each.training)))));
  writeCommand("command", facts.command);
  writeCommand("further", facts.continue);
  $("made").hidden = !facts.command;
  showReport(facts.report);
}

try {
  show(await api(`runs/${encodeURIComponent(run)}`));
} catch (error) {
  showError(error);
}

$("draw").addEventListener("click", async () => {
  $("draw").disabled = true;
  $("draw").textContent = "Drawing\u00a0…";
  showError();
  try {
    await follow({ kind: "report" }, () => {});
    announce("The report is drawn");
    show(await api(`runs/${encodeURIComponent(run)}`));
  } catch (error) {
    showReport(!$("report").hidden);
    showError(error);
  }
  $("draw").disabled = false;
});
