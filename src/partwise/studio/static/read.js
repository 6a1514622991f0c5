import { $, address, api, comparison, el, enableCopy, prefix, row, showError, signed } from "./page.js";

enableCopy();
try {
  const result = await api(`comparisons/${encodeURIComponent(comparison)}/result`);
  $("asked").textContent = result.question;
  $("verdicts").replaceChildren(...result.verdicts.flatMap(({ lines }) => [el("p", { class: "verdict" }, lines[0]), ...lines.slice(1).map((line) => el("p", { class: "quiet" }, line))]));
  $("command").textContent = [result.command, result.predict].filter(Boolean).join(" ");
  const { prediction, outcome } = result;
  $("prediction").tBodies[0].replaceChildren(
    prediction
      ? row(`${prediction.arm}: ${signed(prediction.low)} to ${signed(prediction.high)}`, outcome ? signed(outcome.value) : "no difference", outcome ? el("strong", {}, outcome.inside ? "inside your range" : "outside your range") : "")
      : row("nothing", "", ""),
  );
  $("files").replaceChildren(...result.files.map((file) => el("a", { class: "button", href: `${address("files", comparison, file)}?download`, download: `${comparison}-${file}` }, `Download ${file}`)));
  if (result.asked) {
    const ask = (text, question) => el("a", { class: "button", href: `${prefix}/ask?q=${encodeURIComponent(JSON.stringify(question))}` }, text);
    $("files").append(ask("Replicate on fresh seeds", { ...result.asked, first_seed: result.next_seed }), ask("Ask it differently", result.asked));
  }
  const samples = result.samples.filter((each) => each.lines.length);
  $("samples").hidden = !samples.length;
  $("sample-columns").replaceChildren(...samples.map(({ arm, lines }) => el("div", {}, el("h3", {}, arm), el("pre", { tabindex: "0", "aria-label": `Samples of ${arm}` }, lines.join("\n")))));
  $("report").src = address("files", comparison, "report.html");
} catch (error) {
  showError(error);
}
