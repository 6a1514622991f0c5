import { $, announce, api, comparison, el, enableCopy, format, number, row, showError, signed, writeCommand } from "./page.js";

const MARKS = { keep: ["✓", "good"], discard: ["✕", "bad"], undecided: ["?", "quiet"], unfinished: ["…", "quiet"] };

function decision({ decision: said }) {
  const [mark, look] = MARKS[said];
  return el("td", {}, el("span", { class: look }, `${mark} ${said}`));
}

/** What ran, below its description if that is another text. */
function what({ kind, command, commit, description }) {
  const ran = kind === "command" ? command : commit.slice(0, 10);
  return ran === description ? [] : [el("br"), el("span", { class: "quiet" }, ran)];
}

enableCopy();
writeCommand("command", `partwise try --search ${comparison}`);
try {
  const search = await api(`searches/${encodeURIComponent(comparison)}`);
  const { best, tries } = search;
  const count = (said) => tries.filter((each) => each.decision === said).length;
  $("asked").textContent = `What improves ${search.metric}? ${search.lower_is_better ? "Lower" : "Higher"} is better.`;
  $("best").textContent = `Best so far: ${best.number ? `try ${best.number}` : "the start"}, ${best.description} (${best.commit.slice(0, 10)})${best.mean === null ? "" : `, mean ${format(best.mean, 6)}, SD ${format(best.sd, 2)}, ${best.values.length} runs`}.`;
  $("summary").textContent = `${tries.length} tried: ${count("keep")} kept, ${count("discard")} discarded, ${count("undecided")} undecided; ${search.runs} runs in all. Of the kept, at most ${format(100 * search.alpha)}% are false on average.`;
  $("tries").tBodies[0].replaceChildren(...[...tries].reverse().map((each) => row(
    number(each.number),
    decision(each),
    el("td", {}, each.description, ...what(each)),
    each.reason,
    number(each.estimate === null ? "" : signed(each.estimate)),
    number(each.low === null || each.high === null ? "" : `${signed(each.low)} to ${signed(each.high)}`),
    number(each.values.length),
  )));
  announce($("summary").textContent);
} catch (error) {
  showError(error);
}
