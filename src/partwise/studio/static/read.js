import { $, address, announce, api, comparison, el, enableCopy, prefix, row, showError, signed, writeCommand } from "./page.js";

let commands;

/** `partwise verify` with the runs to repeat, as the field has them. */
function showCommand() {
  const trials = Number($("trials").value);
  writeCommand("verify-command", commands.check + (trials ? ` --rerun ${trials}${commands.imports}` : ""));
}

enableCopy();
$("trials").addEventListener("input", showCommand);
$("rerun").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("verify").disabled = true;
  $("verified").textContent = "Checking …";
  $("checks").replaceChildren();
  showError();
  try {
    const { certificates: [found] } = await api(`comparisons/${encodeURIComponent(comparison)}/verify`, { trials: Number($("trials").value) });
    $("verified").textContent = found.holds ? "Everything holds." : "Something does not hold.";
    $("checks").replaceChildren(...[...found.checks, ...found.repeated].map(({ statement, fault }) => el("li", { class: fault ? "bad" : "" }, `${fault ? "✕" : "✓"} ${statement}${fault ? `: ${fault}` : ""}`)));
    announce($("verified").textContent);
  } catch (error) {
    $("verified").textContent = "";
    showError(error);
  }
  $("verify").disabled = false;
});
try {
  const result = await api(`comparisons/${encodeURIComponent(comparison)}/result`);
  $("asked").textContent = result.question;
  $("verdicts").replaceChildren(...result.verdicts.flatMap(({ lines }) => [el("p", { class: "verdict" }, lines[0]), ...lines.slice(1).map((line) => el("p", { class: "quiet" }, line))]));
  writeCommand("command", [result.command, result.predict].filter(Boolean).join(" "));
  const { prediction, outcome } = result;
  $("prediction").tBodies[0].replaceChildren(
    prediction
      ? row(`${prediction.arm}: ${signed(prediction.low)} to ${signed(prediction.high)}`, outcome ? signed(outcome.value) : "no difference", outcome ? el("strong", {}, outcome.inside ? "inside your range" : "outside your range") : "")
      : row("nothing", "", ""),
  );
  $("files").replaceChildren(...result.files.map((file) => el("a", { class: "button", href: `${address("files", comparison, file)}?download`, download: `${comparison}-${file}` }, `Download ${file}`)));
  if (result.asked) {
    const ask = (text, question) => el("a", { class: "button", href: `${prefix}/ask?q=${encodeURIComponent(JSON.stringify(question))}` }, text);
    $("files").append(ask("Ask it differently", result.asked));
    $("replicate").href = ask("", { ...result.asked, first_seed: result.next_seed }).getAttribute("href");
    $("replicate").hidden = false;
  }
  commands = result.again;
  showCommand();
  writeCommand("figures-command", result.again.figures);
  writeCommand("replicate-command", result.again.replicate);
  $("replication").hidden = !result.again.replicate;
  const samples = result.samples.filter((each) => each.lines.length);
  $("samples").hidden = !samples.length;
  $("sample-columns").replaceChildren(...samples.map(({ arm, lines }) => el("div", {}, el("h3", {}, arm), el("pre", { tabindex: "0", "aria-label": `Samples of ${arm}` }, lines.join("\n")))));
  if (result.files.includes("report.html")) $("report").src = address("files", comparison, "report.html");
  else $("report").replaceWith(el("p", { class: "quiet" }, `There is no report: partwise report ${comparison} writes it.`));
} catch (error) {
  showError(error);
}
